"""The register of all defects: those of the legacy handler, then ``etcd-v2``, the store and the server."""

from __future__ import annotations

from rallypoint.defects import agents, backends, dynamic, replies, servers, stores
from rallypoint.defects.legacy import LEGACY
from rallypoint.defects.record import Defect

_OTHERS = (
    Defect(
        "D-A",
        "a torchrun agent that joins later never starts its worker",
        "etcd-v2",
        "one address per version, published by that version's rank 0",
        25,
        agents.joins_later,
        bound=120,
    ),
    Defect(
        "D-E",
        "the state is lost: members become strangers, and nobody is told",
        "etcd-v2",
        "a superseded member learns it",
        3,
        dynamic.lost_state,
    ),
    Defect(
        "D-K",
        "a lost member leaves the state, and the others are not told",
        "etcd-v2",
        "the loss of a member is signalled",
        6,
        dynamic.lost_member,
    ),
    Defect(
        "D-I",
        "a hung etcd: the agent is kept from its workers",
        "etcd-v2",
        "no call outlasts its timeout",
        4,
        dynamic.hung_server,
    ),
    Defect(
        "D-L",
        "who can write the state's key runs code in every agent",
        "etcd-v2",
        "nothing foreign is unpickled",
        2,
        dynamic.foreign_pickle,
    ),
    Defect(
        "B-A",
        "a lost reply: set_state denies its own write",
        "etcd-v2",
        "an own write that is seen again is a success",
        1,
        replies.lost_state,
    ),
    Defect("B-B", "a token of 0 creates the state", "etcd-v2", "a token never creates", 1, backends.token_of_zero),
    Defect(
        "B-H",
        "a state that vanished is a connection error, for ever",
        "etcd-v2",
        "a token for a vanished key gives None",
        1,
        backends.vanished_state,
    ),
    Defect(
        "B-D",
        "text that nobody wrote is read as a state",
        "etcd-v2",
        "what cannot have been written is a RendezvousStateError",
        1,
        backends.foreign_state,
    ),
    Defect(
        "B-E", "several run ids share one key", "etcd-v2", "each run id has a key of its own", 1, backends.alike_run_ids
    ),
    Defect(
        "B-G", "a run id leaves the prefix", "etcd-v2", "each run id has a key of its own", 1, backends.escaping_run_id
    ),
    Defect(
        "B-J",
        "torchrun's timeout and unknown options are dropped without a word",
        "etcd-v2",
        "options take effect or are errors",
        2,
        backends.options,
    ),
    Defect(
        "B-L",
        "how long a closed state blocks its run id cannot be said",
        "etcd-v2",
        "the life time of the state can be configured",
        1,
        backends.life_time,
    ),
    Defect(
        "S-B",
        "a lost reply makes add() count twice",
        "store",
        "an addition takes effect once",
        1,
        replies.lost_addition,
    ),
    Defect(
        "S-G",
        "a key set between a reader's look and its watch is missed",
        "store",
        "no wake-up is lost, in any order of set and wait",
        3,
        replies.late_key,
    ),
    Defect(
        "S-C",
        "a new run reads the address of an earlier run",
        "store",
        "runs never read each other's keys",
        1,
        stores.old_run,
    ),
    Defect(
        "S-A",
        "with a prefix without leading slash nothing is found again",
        "store",
        "documented examples run",
        1,
        stores.plain_prefix,
    ),
    Defect(
        "S-F",
        "keys whose base64 holds a slash are lost, or cannot be set",
        "store",
        "each key is a key of its own",
        2,
        stores.slash_in_base64,
    ),
    Defect("S-I", "each get reads the whole directory", "store", "a get reads its key", 3, stores.cost_of_get),
    Defect(
        "S-J",
        "PrefixStore(..., EtcdStore(...)) fails an internal assertion",
        "store",
        "works under PrefixStore",
        1,
        stores.prefix_store,
    ),
    Defect(
        "S-L",
        "a hung etcd: the store's timeout is not kept",
        "store",
        "no call outlasts its timeout",
        3,
        stores.hung_server,
    ),
    Defect("S-M", "half of Store's methods are missing", "store", "the whole interface", 1, stores.whole_interface),
    Defect(
        "E-A",
        "etcd and its directory outlive the process that started them",
        "server",
        "nothing is left behind",
        7,
        servers.orphan,
    ),
    Defect(
        "E-B",
        "stop() deletes the user's directory",
        "server",
        "nothing of the user's is deleted",
        2,
        servers.stop_deletes,
    ),
    Defect(
        "E-C",
        "a failed start deletes the user's directory",
        "server",
        "nothing of the user's is deleted",
        1,
        servers.failed_start_deletes,
    ),
    Defect(
        "E-D",
        "a wrong path to etcd is replaced by what is on PATH",
        "server",
        "what the user names is used, or refused",
        1,
        servers.wrong_binary,
    ),
    Defect("E-E", "a blank in the data directory's name", "server", "any path works", 2, servers.blank_in_path),
    Defect(
        "E-G",
        "an etcd without v2 API: three starts, and an exit code for a reason",
        "server",
        "a failed start says why",
        1,
        servers.no_v2,
    ),
    Defect(
        "E-J", "stop() waits for ever for an etcd that hangs", "server", "stop() is bounded", 7, servers.unbounded_stop
    ),
    Defect(
        "E-K",
        "the documented example is a TypeError",
        "server",
        "documented examples run",
        1,
        servers.documented_example,
    ),
)

DEFECTS: dict[str, Defect] = {row.id: row for row in (*LEGACY, *_OTHERS)}
"""Id -> row."""
