----------------------------- MODULE Rendezvous -----------------------------
(***************************************************************************)
(* PyTorch's etcd rendezvous, request by request, with crashes, lost       *)
(* replies and expiring leases as ordinary steps.  Twin of model/: actions *)
(* and operators bear the names of model/worker.py, and the state graphs   *)
(* are compared, edge by edge.                                             *)
(*                                                                         *)
(* A worker's step is one request: etcd applies it and the worker sees the *)
(* reply.  LoseReply applies the request and leaves the worker where it    *)
(* is, so that it repeats it, as an HTTP layer does.                       *)
(*                                                                         *)
(* Steps that are merged, and why nothing is lost:                         *)
(*  - A request with what its worker computes before and after it: nobody  *)
(*    else sees that, and etcd orders workers by their requests alone.  A  *)
(*    lost request is a later one: no step.                                *)
(*  - A watch with the read after it.  A watch says "look again", no more; *)
(*    what happens between the two is seen by the read.  So the pair is a  *)
(*    read, enabled once what it waits for has happened; being woken for   *)
(*    nothing is WakeEarly.  (A watch on the whole directory, too.)        *)
(*  - A write with the reading of what was written, where the reply is     *)
(*    used.  PyTorch's workers read again: these are the actions XRead.    *)
(*  - The renewal of a key changes nothing that anybody reads.  That it    *)
(*    came too late is LoseLease, or ExpireDocument in a last call.        *)
(*  - An outage is no step of ours: requests are repeated and leases       *)
(*    renewed after it.  Outage is a step where something changes.         *)
(*  - Time is no variable.  What a clock ends may end at any moment; that  *)
(*    it does not while somebody can act is said in Fair only.             *)
(***************************************************************************)
EXTENDS Integers, Sequences, FiniteSets

CONSTANTS
    N,                  \* number of workers
    Min, Max,           \* bounds of the world size
    Rules,              \* the switches of model/rules.py that are on
    Theirs,             \* slots that follow PyTorch's rules whatever Rules says
    Others,             \* slots that were started with other bounds:
    OtherMin, OtherMax,
    Bootstrap,          \* members also agree on the address of rank 0
    Crashes, Restarts, LostReplies, Expiries, LostLeases,
    Rejoins, Closes, Deadlines, EarlyWakes, Outages, LostRuns
                        \* how many of each fault or free choice a run may contain

VARIABLES
    store,              \* etcd: document, its TTL mark, counter, directories, leased keys
    w,                  \* the workers, by slot
    left,               \* how many of each fault may still happen
    hist                \* what happened, as far as a requirement speaks of the past

vars == <<store, w, left, hist>>

Slots == 0 .. (N - 1)
None == <<>>

\* The rules of worker x (model/system.py: rules_of).
Switches(x) == IF x.id[1] \in Theirs THEN {"reread"} ELSE Rules
MinOf(x) == IF x.id[1] \in Others THEN OtherMin ELSE Min
MaxOf(x) == IF x.id[1] \in Others THEN OtherMax ELSE Max

Reread(x) == "reread" \in Switches(x)     \* PyTorch's habit: read again before each write
OwnedSlots(x) == "owned_slots" \in Switches(x)
IdempotentConfirm(x) == "idempotent_confirm" \in Switches(x)
CountedOnce(x) == "counted_once" \in Switches(x)
RacesNotFatal(x) == "races_not_fatal" \in Switches(x)
LeaveAtOnce(x) == "leave_at_once" \in Switches(x)
EarlyLease(x) == "early_lease" \in Switches(x)
ToldWhenStale(x) == "told_when_stale" \in Switches(x)
SparesParked(x) == "spares_parked" \in Switches(x)
TirelessLeases(x) == "tireless_leases" \in Switches(x)
CounterRestored(x) == "counter_restored" \in Switches(x)
BoundsAgreed(x) == "bounds_agreed" \in Switches(x)
AddressWatched(x) == "address_watched" \in Switches(x)
ClosingAlwaysCloses(x) == "closing_always_closes" \in Switches(x)
ClosedExpires(x) == "closed_expires" \in Switches(x)

-----------------------------------------------------------------------------
(* The document (model/document.py) *)

NoDoc == [status |-> "absent", version |-> 0, size |-> 0, bounds |-> None, owners |-> None,
          frozen |-> FALSE, keeps |-> None, waiting |-> -1,
          creator |-> None, waiters |-> None]

Elements(seq) == {seq[k] : k \in DOMAIN seq}

Setup(x) == [NoDoc EXCEPT !.status = "setup",
                          !.creator = IF OwnedSlots(x) THEN x.id ELSE None]

Opened(x) == [NoDoc EXCEPT !.status = "joinable", !.version = x.version,
                           !.bounds = IF BoundsAgreed(x) THEN <<MinOf(x), MaxOf(x)>> ELSE None]

Frozen(d) == [d EXCEPT !.status = "frozen", !.frozen = TRUE]

Joined(d, x) ==
    LET j == [d EXCEPT !.size = @ + 1,
                       !.owners = Append(@, IF OwnedSlots(x) THEN x.id ELSE None)]
    IN  IF j.size = MaxOf(x) THEN Frozen(j) ELSE j

Covered(d) == Cardinality(Elements(d.keeps)) = d.size

ConfirmedBy(d, key, x) ==
    LET c == [d EXCEPT !.keeps =
                 IF IdempotentConfirm(x) /\ key \in Elements(@) THEN @ ELSE Append(@, key)]
        done == IF IdempotentConfirm(x) THEN Covered(c) ELSE Len(c.keeps) = c.size
    IN  IF done THEN [c EXCEPT !.status = "final", !.waiting = 0] ELSE c

Announced(d, x) ==
    IF ~CountedOnce(x) THEN [d EXCEPT !.waiting = @ + 1]
    ELSE IF x.id \in Elements(d.waiters) THEN d
    ELSE [d EXCEPT !.waiting = @ + 1, !.waiters = Append(@, x.id)]

ClosedOf(d) == [d EXCEPT !.status = "closed"]

RankOf(d, id) ==
    IF id \in Elements(d.owners)
    THEN (CHOOSE k \in DOMAIN d.owners :
             /\ d.owners[k] = id
             /\ \A m \in DOMAIN d.owners : d.owners[m] = id => k <= m) - 1
    ELSE -1

-----------------------------------------------------------------------------
(* Keys with a lease *)

AliveKey(v, id) == <<"alive", v, id>>
WaiterKey(v, id) == <<"waiter", v, id>>

KeepAliveKey(x, v) == IF EarlyLease(x) THEN AliveKey(v, x.id) ELSE <<"rank", v, x.rank>>

Watched(x, d) ==
    IF d.status = "final" THEN Elements(d.keeps)
    ELSE IF EarlyLease(x)
         THEN {AliveKey(d.version, id) : id \in Elements(d.owners) \ {None}} \cup Elements(d.keeps)
         ELSE {}

-----------------------------------------------------------------------------
(* What a worker makes of a document (model/worker.py) *)

At(x, pc) == [x EXCEPT !.pc = pc, !.seen = NoDoc, !.version = 0, !.rank = -1, !.world = 0, !.mixed = FALSE]
Seeing(x, pc, d) == [At(x, pc) EXCEPT !.seen = d, !.version = d.version]
Phase(x, pc) == [At(x, pc) EXCEPT !.version = x.version, !.rank = x.rank]

Enter(x) ==
    IF x.lease = None THEN At(x, "create")
    ELSE IF LeaveAtOnce(x) THEN At(x, "leave")
    ELSE [At(x, "create") EXCEPT !.lease = None]

Rank(x, d) ==
    IF ~OwnedSlots(x) THEN (IF x.version = d.version THEN x.rank ELSE -1)
    ELSE IF EarlyLease(x) /\ x.lease # AliveKey(d.version, x.id) THEN -1
    ELSE RankOf(d, x.id)

HasConfirmed(x, d) ==
    IF IdempotentConfirm(x) THEN KeepAliveKey(x, x.version) \in Elements(d.keeps)
    ELSE x.pc \in {"wait_final", "final_read", "confirm"}

ToConfirm(x, d) ==
    [Seeing(x, IF EarlyLease(x) THEN "confirm" ELSE "keep_alive", d) EXCEPT !.rank = x.rank]

\* A member goes on to agree on the address of rank 0.
Introduce(x) == [x EXCEPT !.pc = IF x.rank = 0 THEN "publish_address" ELSE "await_address"]

Met(x, d) ==
    IF IdempotentConfirm(x) /\ ~(Covered(d) /\ HasConfirmed(x, d))
    THEN Seeing(x, "destroy", d)
    ELSE LET m == [At(x, "member") EXCEPT !.version = d.version, !.rank = x.rank, !.world = d.size,
                                          !.mixed = OwnedSlots(x) /\ None \in Elements(d.owners)]
         IN  IF Bootstrap THEN Introduce(m) ELSE m

\* The version was opened for other numbers of workers.
Foreign(x, d) == BoundsAgreed(x) /\ d.bounds \notin {None, <<MinOf(x), MaxOf(x)>>}

Outside(x, d) ==
    IF x.lease \notin {None, IF d.status = "final" THEN WaiterKey(d.version, x.id)
                                                   ELSE KeepAliveKey(x, d.version)}
    THEN Enter(x)
    ELSE IF d.status = "final" /\ ~Covered(d) THEN Seeing(x, "destroy", d)
    ELSE IF d.status = "final" \/ (Foreign(x, d) /\ d.size # 0) THEN Seeing(x, "alive", d)
    ELSE IF d.status = "joinable" /\ d.size < MaxOf(x) /\ ~Foreign(x, d)
         THEN IF Reread(x) THEN [At(x, "join_read") EXCEPT !.version = d.version]
              ELSE IF EarlyLease(x) /\ x.lease = None THEN Seeing(x, "register", d)
              ELSE Seeing(x, "join", d)
    ELSE [At(x, "wait") EXCEPT !.seen = d]

Dispatch(x, d, missing) ==
    IF d = NoDoc THEN Enter(x)
    ELSE IF d.status = "closed" THEN At(x, "closed")
    ELSE IF d.status = "setup"
         THEN IF OwnedSlots(x) /\ d.creator = x.id THEN At(x, "counter")
              ELSE [At(x, "wait") EXCEPT !.seen = d]
    ELSE LET r == Rank(x, d)
             inside == [x EXCEPT !.version = d.version, !.rank = r]
         IN  IF r = -1 THEN Outside(x, d)
             ELSE IF d.status = "final" THEN Met(inside, d)
             ELSE IF missing # {} THEN Seeing(x, "destroy", d)
             ELSE IF d.status = "frozen" /\ ~HasConfirmed(inside, d) THEN ToConfirm(inside, d)
             ELSE [Seeing(x, IF d.status = "joinable" THEN "peers" ELSE "wait_final", d)
                      EXCEPT !.rank = r]

OnWait(x, d) == IF Reread(x) THEN Enter(x) ELSE Dispatch(x, d, {})

Expected(x, d, status) == d.status = status /\ d.version = x.version

OnPeers(x, d, missing) ==
    IF ~Reread(x) THEN Dispatch(x, d, missing)
    ELSE IF Expected(x, d, "joinable") THEN [Seeing(x, "peers", d) EXCEPT !.rank = x.rank]
    ELSE IF Expected(x, d, "frozen") THEN Phase(x, "confirm_read")
    ELSE Enter(x)

OnWaitFinal(x, d, missing) ==
    IF ~Reread(x) THEN Dispatch(x, d, missing)
    ELSE IF Expected(x, d, "final") THEN Met(x, d)
    ELSE IF Expected(x, d, "frozen") THEN [Seeing(x, "wait_final", d) EXCEPT !.rank = x.rank]
    ELSE Enter(x)

OnForeign(x, d, missing) == IF missing # {} THEN Seeing(x, "destroy", d) ELSE Dispatch(x, d, {})

OnMonitor(x, d, missing) ==
    IF Expected(x, d, "final")
    THEN Seeing(x, IF missing # {} THEN "destroy" ELSE "alive", d)
    ELSE IF Reread(x) THEN Enter(x) ELSE Dispatch(x, d, {})

\* A member starts over, under the same id or another.
Reenter(x) == Enter([x EXCEPT !.lease = IF x.mixed THEN None ELSE @])

OnAddress(x, d, found, missing) ==
    IF found THEN [x EXCEPT !.pc = "member", !.seen = NoDoc]
    ELSE IF d.status = "closed" THEN [At(x, "closed") EXCEPT !.version = x.version]
    ELSE IF Expected(x, d, "final") /\ missing = {} THEN [x EXCEPT !.seen = d]
    ELSE Reenter(x)

LookAgain(x) == IF OwnedSlots(x) THEN At(x, "read") ELSE Phase(x, "read")

Refused(x, phase) ==
    IF ~Reread(x) THEN LookAgain(x)
    ELSE IF store.doc = NoDoc THEN Enter(x)
    ELSE Phase(x, phase)

-----------------------------------------------------------------------------
(* What etcd makes of a write (model/etcd.py): the store after it, and whether it was done *)

NoCount == -1  \* there is no version counter

Yes(s) == [store |-> s, ok |-> TRUE]
No == [store |-> store, ok |-> FALSE]

Swap(old, new, ttl) ==
    IF store.doc = old THEN Yes([store EXCEPT !.doc = new, !.ttl = ttl]) ELSE No

CreateDoc(new, ttl) == Swap(NoDoc, new, ttl)

Counted(n) == [store EXCEPT !.count = n, !.floor = IF n > @ THEN n ELSE @]

\* Writing a key makes its version's directory, if it is gone.
Leased(key) == [store EXCEPT !.keys = @ \cup {key}, !.dirs = @ \cup {key[2]}]

Apply(x) ==
    CASE x.pc = "init" -> IF store.count = NoCount THEN Yes(Counted(0)) ELSE No
      [] x.pc = "create" -> CreateDoc(Setup(x), TRUE)
      [] x.pc = "recount" -> IF store.count = NoCount THEN Yes(Counted(x.version)) ELSE No
      [] x.pc = "bump" -> IF store.count = x.version - 1 THEN Yes(Counted(x.version)) ELSE No
      [] x.pc = "mkdir" -> IF x.version \in store.dirs THEN No
                           ELSE Yes([store EXCEPT !.dirs = @ \cup {x.version}])
      [] x.pc = "publish" -> Swap(Setup(x), Opened(x), FALSE)
      [] x.pc \in {"register", "keep_alive"} ->
             Yes(Leased(KeepAliveKey(x, x.version)))
      [] x.pc = "join" -> LET j == Joined(x.seen, x)
                          IN  Swap(x.seen, j, j.status = "frozen" \/ j.size >= MinOf(x))
      [] x.pc = "freeze" -> Swap(x.seen, Frozen(x.seen), TRUE)
      [] x.pc = "confirm" -> LET c == ConfirmedBy(x.seen, KeepAliveKey(x, x.version), x)
                             IN  Swap(x.seen, c, c.status # "final")
      [] x.pc = "queue" -> Yes(Leased(WaiterKey(x.version, x.id)))
      [] x.pc = "announce" -> Swap(x.seen, Announced(x.seen, x), FALSE)
      [] x.pc = "destroy" -> Swap(x.seen, NoDoc, FALSE)
      [] x.pc = "publish_address" ->
             Yes([store EXCEPT !.addresses = @ \cup {x.version}, !.dirs = @ \cup {x.version}])
      [] x.pc \in {"leave", "withdraw"} -> Yes([store EXCEPT !.keys = @ \ {x.lease}])
      [] x.pc = "close" -> Swap(x.seen, ClosedOf(x.seen), ClosedExpires(x))
      [] x.pc = "close_create" -> CreateDoc(ClosedOf(NoDoc), ClosedExpires(x))

Writes == {"init", "create", "recount", "bump", "mkdir", "publish", "register", "keep_alive", "join", "freeze",
           "confirm", "queue", "announce", "destroy", "publish_address", "leave", "withdraw", "close", "close_create"}

-----------------------------------------------------------------------------
(* Steps *)

Remember(s) ==
    IF s.doc = store.doc THEN hist
    ELSE IF s.doc = NoDoc
         THEN IF store.doc.status = "closed" /\ store.ttl THEN [hist EXCEPT !.closed = FALSE] ELSE hist
    ELSE IF s.doc.status = "closed" THEN [hist EXCEPT !.closed = TRUE]
    ELSE IF s.doc.status = "joinable" /\ s.doc.size = 0
         THEN [hist EXCEPT !.published = IF s.doc.version > @ THEN s.doc.version ELSE @,
                           !.reused = @ \/ s.doc.version <= hist.published]
    ELSE hist

\* Worker i does the write of its line and becomes one or the other, as etcd says.
Write(i, done, refused) ==
    LET a == Apply(w[i])
    IN  /\ store' = a.store
        /\ w' = [w EXCEPT ![i] = IF a.ok THEN done ELSE refused]
        /\ hist' = Remember(a.store)
        /\ UNCHANGED left

\* Worker i reads and becomes x.
Look(i, x) ==
    /\ w' = [w EXCEPT ![i] = x]
    /\ UNCHANGED <<store, left, hist>>

Changed(x) == store.doc # x.seen
Missing(x) == IF Changed(x) THEN {} ELSE Watched(x, x.seen) \ store.keys
Woken(x) == IF Changed(x) THEN TRUE ELSE Missing(x) # {}  \* not a disjunction: TLC would count it twice

\* One action per line of the worker's table (model/worker.py: TABLE), in its order.  Each names the function of the
\* model that it stands for, and the lines of PyTorch 2.13's etcd_rendezvous.py, or says that it is ours.

\* worker._init; upstream 264-270.
InitCounter(i) ==
    /\ w[i].pc = "init"
    /\ Write(i, At(w[i], "create"), At(w[i], "create"))

\* worker._create; upstream 473-478, and 361 if refused.
Create(i) ==
    /\ w[i].pc = "create"
    /\ Write(i, At(w[i], "counter"), At(w[i], "read"))

\* worker._on_init_read; upstream 362-377.
Read(i) ==
    /\ w[i].pc = "read"
    /\ Look(i, IF store.doc.status = "final" /\ Reread(w[i])
               THEN [At(w[i], "announce_read") EXCEPT !.version = store.doc.version]
               ELSE Dispatch(w[i], store.doc, {}))

\* worker._wait; upstream 377-378.
Wait(i) ==
    /\ w[i].pc = "wait"
    /\ Changed(w[i])
    /\ Look(i, OnWait(w[i], store.doc))

\* worker._counter; upstream 481.
ReadCounter(i) ==
    /\ w[i].pc = "counter"
    /\ Look(i, IF store.count # NoCount THEN [At(w[i], "bump") EXCEPT !.version = store.count + 1]
               ELSE IF CounterRestored(w[i]) THEN [At(w[i], "recount") EXCEPT !.version = store.floor]
               ELSE At(w[i], "fatal"))

\* worker._recount; ours.
Recount(i) ==
    /\ w[i].pc = "recount"
    /\ Write(i, [At(w[i], "bump") EXCEPT !.version = w[i].version + 1], At(w[i], "counter"))

\* worker._bump; upstream 482-487.
Bump(i) ==
    /\ w[i].pc = "bump"
    /\ Write(i, Phase(w[i], "mkdir"), At(w[i], IF RacesNotFatal(w[i]) THEN "read" ELSE "fatal"))

\* worker._mkdir; upstream 494-499.
MakeDirectory(i) ==
    /\ w[i].pc = "mkdir"
    /\ Write(i, Phase(w[i], "publish"), IF RacesNotFatal(w[i]) THEN Phase(w[i], "publish") ELSE Enter(w[i]))

\* worker._publish; upstream 504-514.
Publish(i) ==
    /\ w[i].pc = "publish"
    /\ Write(i, Dispatch(w[i], Opened(w[i]), {}), IF Reread(w[i]) THEN Enter(w[i]) ELSE At(w[i], "read"))

\* worker._register; ours.
Register(i) ==
    /\ w[i].pc = "register"
    /\ LET x == [Seeing(w[i], "join", w[i].seen) EXCEPT !.lease = KeepAliveKey(w[i], w[i].version)]
       IN  Write(i, x, x)

\* worker._on_join_read; upstream 521-537.
JoinRead(i) ==
    /\ w[i].pc = "join_read"
    /\ Look(i, IF Expected(w[i], store.doc, "joinable") /\ store.doc.size < MaxOf(w[i])
               THEN Seeing(w[i], "join", store.doc)
               ELSE Enter(w[i]))

\* worker._join; upstream 539-564.
Join(i) ==
    /\ w[i].pc = "join"
    /\ LET x == [w[i] EXCEPT !.rank = w[i].seen.size]
       IN  Write(i, IF Reread(x) THEN Phase(x, "peers_read") ELSE Dispatch(x, Joined(x.seen, x), {}),
                    Refused(w[i], "join_read"))

\* worker._on_peers; upstream 568; of the last call's owner 764 and 794.
PeersRead(i) ==
    /\ w[i].pc = "peers_read"
    /\ Look(i, OnPeers(w[i], store.doc, {}))

\* worker._on_peers; upstream 570-584; of the last call's owner 766-774 and 814.
AwaitPeers(i) ==
    /\ w[i].pc = "peers"
    /\ Woken(w[i])
    /\ Look(i, OnPeers(w[i], store.doc, Missing(w[i])))

OwnsLastCall(x) == x.pc = "peers" /\ x.rank = MinOf(x) - 1

\* worker.last_call_over; upstream 777.
LastCallOver(i) ==
    /\ OwnsLastCall(w[i])
    /\ Look(i, [Seeing(w[i], "freeze", w[i].seen) EXCEPT !.rank = w[i].rank])

\* worker._freeze; upstream 778-795.
Freeze(i) ==
    /\ w[i].pc = "freeze"
    /\ Write(i, IF Reread(w[i]) THEN Phase(w[i], "peers_read") ELSE Dispatch(w[i], Frozen(w[i].seen), {}),
                Refused(w[i], "peers_read"))

\* worker._on_confirm_read; upstream 591-601.
ConfirmRead(i) ==
    /\ w[i].pc = "confirm_read"
    /\ Look(i, IF Expected(w[i], store.doc, "frozen") THEN ToConfirm(w[i], store.doc) ELSE Enter(w[i]))

\* worker._keep_alive; upstream 603-606.
KeepAlive(i) ==
    /\ w[i].pc = "keep_alive"
    /\ LET x == [w[i] EXCEPT !.pc = "confirm"] IN Write(i, x, x)

\* worker._confirm; upstream 608-632.
Confirm(i) ==
    /\ w[i].pc = "confirm"
    /\ LET key == KeepAliveKey(w[i], w[i].version)
           x == [w[i] EXCEPT !.lease = key]
       IN  Write(i, IF Reread(x) THEN Phase(x, "final_read") ELSE Dispatch(x, ConfirmedBy(x.seen, key, x), {}),
                    Refused(w[i], "confirm_read"))

\* worker._on_wait_final; upstream 636.
FinalRead(i) ==
    /\ w[i].pc = "final_read"
    /\ Look(i, OnWaitFinal(w[i], store.doc, {}))

\* worker._on_wait_final; upstream 638-652.
AwaitFinal(i) ==
    /\ w[i].pc = "wait_final"
    /\ Woken(w[i])
    /\ Look(i, OnWaitFinal(w[i], store.doc, Missing(w[i])))

\* worker._on_announce_read; upstream 661-664.
AnnounceRead(i) ==
    /\ w[i].pc = "announce_read"
    /\ Look(i, IF Expected(w[i], store.doc, "final")
               THEN Seeing(w[i], "announce", store.doc)
               ELSE Enter(w[i]))

\* worker._queue; ours.
Queue(i) ==
    /\ w[i].pc = "queue"
    /\ LET x == [Seeing(w[i], "announce", w[i].seen) EXCEPT !.lease = WaiterKey(w[i].version, w[i].id)]
       IN  Write(i, x, x)

\* worker._announce; upstream 667-678.
Announce(i) ==
    /\ w[i].pc = "announce"
    /\ Write(i, IF Reread(w[i]) THEN Phase(w[i], "monitor_read")
                ELSE Seeing(w[i], "monitor", Announced(w[i].seen, w[i])),
                Refused(w[i], "announce_read"))

\* worker._on_monitor; upstream 690-693.
MonitorRead(i) ==
    /\ w[i].pc = "monitor_read"
    /\ Look(i, OnMonitor(w[i], store.doc, {}))

\* worker._alive; upstream 698-704.
CheckAlive(i) ==
    /\ w[i].pc = "alive"
    /\ LET x == w[i]
       IN  Look(i, IF x.version \notin store.dirs /\ Reread(x) THEN Enter(x)
                   ELSE IF ~(Watched(x, x.seen) \subseteq store.keys) THEN Seeing(x, "destroy", x.seen)
                   ELSE IF Foreign(x, x.seen) THEN Seeing(x, "foreign", x.seen)
                   ELSE IF Reread(x) \/ x.id \in Elements(x.seen.waiters) THEN Seeing(x, "monitor", x.seen)
                   ELSE Seeing(x, IF CountedOnce(x) /\ x.lease = None THEN "queue" ELSE "announce", x.seen))

\* worker._on_monitor; upstream 735-746.
Monitor(i) ==
    /\ w[i].pc = "monitor"
    /\ Woken(w[i])
    /\ Look(i, OnMonitor(w[i], store.doc, Missing(w[i])))

\* worker._on_foreign; ours.
AwaitOthers(i) ==
    /\ w[i].pc = "foreign"
    /\ Woken(w[i])
    /\ Look(i, OnForeign(w[i], store.doc, Missing(w[i])))

\* worker.others_stay; ours.
OthersStay(i) ==
    /\ w[i].pc = "foreign"
    /\ Look(i, Seeing(w[i], "mismatch", w[i].seen))

\* worker._destroy; upstream 716-727.
Destroy(i) ==
    /\ w[i].pc = "destroy"
    /\ Write(i, Enter(w[i]), IF Reread(w[i]) THEN Enter(w[i]) ELSE At(w[i], "read"))

\* worker._publish_address; upstream 178.
PublishAddress(i) ==
    /\ w[i].pc = "publish_address"
    /\ LET x == [w[i] EXCEPT !.pc = "member"] IN Write(i, x, x)

Addressed(x) ==
    IF x.version \in store.addresses THEN TRUE
    ELSE AddressWatched(x) /\ IF Changed(x) THEN TRUE ELSE x.seen # NoDoc /\ Missing(x) # {}

\* worker._await_address; upstream 178.
AwaitAddress(i) ==
    /\ w[i].pc = "await_address"
    /\ LET found == w[i].version \in store.addresses
           missing == IF w[i].seen = NoDoc THEN {} ELSE Missing(w[i])
       IN  /\ Addressed(w[i])
           /\ Look(i, OnAddress(w[i], store.doc, found, missing))

\* worker._leave; ours.
Leave(i) ==
    /\ w[i].pc = "leave"
    /\ LET x == [At(w[i], "create") EXCEPT !.lease = None] IN Write(i, x, x)

\* worker._withdraw; ours.
Withdraw(i) ==
    /\ w[i].pc = "withdraw"
    /\ LET x == [At(w[i], "timed_out") EXCEPT !.lease = None] IN Write(i, x, x)

\* worker._close_read; upstream 829-833.
CloseRead(i) ==
    /\ w[i].pc = "close_read"
    /\ Look(i, IF store.doc.status = "closed" THEN At(w[i], "closed")
               ELSE IF store.doc = NoDoc
                    THEN At(w[i], IF ClosingAlwaysCloses(w[i]) THEN "close_create" ELSE "fatal")
               ELSE [At(w[i], "close") EXCEPT !.seen = store.doc])

\* worker._close; upstream 835-846.
Close(i) ==
    /\ w[i].pc = "close"
    /\ Write(i, At(w[i], "closed"), At(w[i], "close_read"))

\* worker._close; ours.
CloseCreate(i) ==
    /\ w[i].pc = "close_create"
    /\ Write(i, At(w[i], "closed"), At(w[i], "close_read"))

-----------------------------------------------------------------------------
(* Faults and free choices (model/system.py) *)

Ended == {"member", "closed", "timed_out", "mismatch", "fatal", "crashed"}

\* Lines that are not part of the wait for a rendezvous.
Between == {"init", "leave", "withdraw", "close_read", "close", "close_create"}

Pay(what) == left[what] > 0 /\ left' = [left EXCEPT ![what] = @ - 1]

Become(i, x) == w' = [w EXCEPT ![i] = x] /\ UNCHANGED <<store, hist>>

NextId(x) == <<x.id[1], x.id[2] + 1>>

Blank(id) == [id |-> id, pc |-> "create", seen |-> NoDoc, version |-> 0, rank |-> -1,
              world |-> 0, lease |-> None, mixed |-> FALSE]

Fresh(id) == IF Reread(Blank(id)) THEN [Blank(id) EXCEPT !.pc = "init"] ELSE Blank(id)

\* system._requests; of the HTTP client, which repeats its request.
LoseReply(i) ==
    /\ w[i].pc \in Writes
    /\ Pay("lost_replies")
    /\ store' = Apply(w[i]).store
    /\ store' # store
    /\ hist' = Remember(store')
    /\ UNCHANGED w

\* worker.crash; of no line: anywhere.
Crash(i) ==
    /\ w[i].pc \notin Ended \/ w[i].pc = "member"
    /\ Pay("crashes")
    /\ Become(i, [Blank(w[i].id) EXCEPT !.pc = "crashed"])

\* worker.fresh; upstream 224-270, in a new process.
Restart(i) ==
    /\ w[i].pc = "crashed"
    /\ Pay("restarts")
    /\ Become(i, Fresh(NextId(w[i])))

MeetsAgain(i) == Become(i, Reenter([w[i] EXCEPT !.id = NextId(w[i])]))

\* worker.reenter; upstream 295-304.
Rejoin(i) ==
    /\ w[i].pc = "member"
    /\ Pay("rejoins")
    /\ MeetsAgain(i)

\* worker.start_closing; upstream 191-192.
StartClosing(i) ==
    /\ w[i].pc \in {"member", "create"}
    /\ Pay("closes")
    /\ Become(i, At(w[i], "close_read"))

\* worker.deadline; upstream 297-298, 744 and 864.
Deadline(i) ==
    /\ w[i].pc \notin Ended \cup Between
    /\ Pay("deadlines")
    /\ Become(i, IF w[i].pc = "await_address" /\ ~AddressWatched(w[i]) THEN [w[i] EXCEPT !.pc = "fatal"]
                 ELSE IF w[i].lease # None /\ LeaveAtOnce(w[i]) THEN At(w[i], "withdraw")
                 ELSE [At(w[i], "timed_out") EXCEPT !.lease = None])

\* A member looks at the document, and its version is closed.
\* worker.notice; ours.
SeeClosed(i) ==
    /\ w[i].pc = "member"
    /\ ClosedExpires(w[i])
    /\ Expected(w[i], store.doc, "closed")
    /\ Become(i, [At(w[i], "closed") EXCEPT !.version = w[i].version])
    /\ UNCHANGED left

\* A watch ends although nothing has changed: timed out, its history cleared, or woken by something else.
Unchanged(x) ==
    CASE x.pc = "wait" -> OnWait(x, store.doc)
      [] x.pc = "peers" -> OnPeers(x, store.doc, {})
      [] x.pc = "wait_final" -> OnWaitFinal(x, store.doc, {})
      [] x.pc = "monitor" -> OnMonitor(x, store.doc, {})
      [] x.pc = "foreign" -> OnForeign(x, store.doc, {})

\* system._requests; upstream 741 and 861.
WakeEarly(i) ==
    /\ w[i].pc \in {"wait", "peers", "wait_final", "monitor", "foreign"}
    /\ IF w[i].pc = "wait" THEN ~Changed(w[i]) ELSE ~Woken(w[i])
    /\ Unchanged(w[i]) # w[i]
    /\ Pay("early_wakes")
    /\ Become(i, Unchanged(w[i]))

\* Etcd cannot be reached for a while, and some request fails: restart, lost request, broken connection.
CutOff(x) ==
    IF x.pc \notin Ended /\ Reread(x) THEN Enter(x)
    ELSE IF TirelessLeases(x) THEN x
    ELSE [x EXCEPT !.lease = None]

\* worker.cut_off; upstream 330-336, and 893-899 for the lease.
Outage(i) ==
    /\ w[i].pc \notin Between
    /\ w[i].pc \notin Ended \/ w[i].pc = "member"
    /\ CutOff(w[i]) # w[i]
    /\ Pay("outages")
    /\ Become(i, CutOff(w[i]))

\* A key that was written just now lives for its TTL, too.
Held(key) == \E i \in Slots :
    IF w[i].pc = "confirm" /\ w[i].lease = None
    THEN key = KeepAliveKey(w[i], w[i].version)
    ELSE key = w[i].lease

Drop(key) == store' = [store EXCEPT !.keys = @ \ {key}] /\ UNCHANGED <<w, hist>>

\* system.environment; of etcd.
ExpireKey == \E key \in store.keys : ~Held(key) /\ Drop(key) /\ UNCHANGED left

\* system.environment; of etcd.
LoseLease == \E key \in store.keys : Held(key) /\ Pay("lost_leases") /\ Drop(key)

DocumentExpires ==
    /\ store.ttl
    /\ store' = [store EXCEPT !.doc = NoDoc, !.ttl = FALSE]
    /\ hist' = Remember(store')
    /\ UNCHANGED w

\* system.environment; of etcd.
ExpireDocument == Pay("expiries") /\ DocumentExpires

Empty == [doc |-> NoDoc, ttl |-> FALSE, count |-> NoCount, dirs |-> {}, keys |-> {}, addresses |-> {},
          floor |-> store.floor]

\* The run's directory expires, or somebody removes it. What remains is etcd's index, which is at least floor.
\* system.environment; of etcd: 256-259.
LoseRun ==
    /\ store # Empty
    /\ Pay("lost_runs")
    /\ store' = Empty
    /\ hist' = Remember(store')
    /\ UNCHANGED w

-----------------------------------------------------------------------------
Init ==
    /\ store = [doc |-> NoDoc, ttl |-> FALSE, count |-> NoCount, dirs |-> {}, keys |-> {}, addresses |-> {},
                floor |-> 0]
    /\ w = [i \in Slots |-> Fresh(<<i, 0>>)]
    /\ left = [crashes |-> Crashes, restarts |-> Restarts, lost_replies |-> LostReplies,
               expiries |-> Expiries, lost_leases |-> LostLeases, rejoins |-> Rejoins,
               closes |-> Closes, deadlines |-> Deadlines, early_wakes |-> EarlyWakes,
               outages |-> Outages, lost_runs |-> LostRuns]
    /\ hist = [published |-> 0, reused |-> FALSE, closed |-> FALSE]

\* The lines of the worker's table.
Progress(i) ==
    \/ InitCounter(i)
    \/ Create(i)
    \/ Read(i)
    \/ Wait(i)
    \/ ReadCounter(i)
    \/ Recount(i)
    \/ Bump(i)
    \/ MakeDirectory(i)
    \/ Publish(i)
    \/ Register(i)
    \/ JoinRead(i)
    \/ Join(i)
    \/ PeersRead(i)
    \/ AwaitPeers(i)
    \/ Freeze(i)
    \/ ConfirmRead(i)
    \/ KeepAlive(i)
    \/ Confirm(i)
    \/ FinalRead(i)
    \/ AwaitFinal(i)
    \/ AnnounceRead(i)
    \/ CheckAlive(i)
    \/ Queue(i)
    \/ Announce(i)
    \/ MonitorRead(i)
    \/ Monitor(i)
    \/ AwaitOthers(i)
    \/ Destroy(i)
    \/ PublishAddress(i)
    \/ AwaitAddress(i)
    \/ Leave(i)
    \/ Withdraw(i)
    \/ CloseRead(i)
    \/ Close(i)
    \/ CloseCreate(i)
    \/ SeeClosed(i)

\* Faults of single workers, and what their users do.
Mishap(i) ==
    \/ LoseReply(i)
    \/ Crash(i)
    \/ Restart(i)
    \/ StartClosing(i)
    \/ Deadline(i)
    \/ WakeEarly(i)
    \/ Outage(i)

Next ==
    \/ \E i \in Slots : Progress(i)
    \/ \E i \in Slots : LastCallOver(i)
    \/ \E i \in Slots : OthersStay(i)
    \/ \E i \in Slots : Mishap(i)
    \/ \E i \in Slots : Rejoin(i)
    \/ ExpireKey
    \/ LoseLease
    \/ ExpireDocument
    \/ LoseRun

Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------
(* What must hold (spec/invariants.py) *)

Members == {i \in Slots : w[i].pc = "member"}

TypeOK ==
    /\ store.doc.status \in {"absent", "setup", "joinable", "frozen", "final", "closed"}
    /\ store.doc.size \in Nat
    /\ store.ttl \in BOOLEAN
    /\ store.count \in NoCount .. store.floor
    /\ \A i \in Slots : w[i].rank \in Nat \cup {-1}
    /\ \A b \in DOMAIN left : left[b] \in Nat

RankUnique ==
    \A i, j \in Members :
        i # j => <<w[i].version, w[i].rank>> # <<w[j].version, w[j].rank>>

RanksDense == \A i \in Members : w[i].rank \in 0 .. (w[i].world - 1)

WorldAgree == \A i, j \in Members : w[i].version = w[j].version => w[i].world = w[j].world

WorldBounds == \A i \in Members : w[i].world \in MinOf(w[i]) .. MaxOf(w[i])

FinalAllConfirmed ==
    store.doc.status = "final" => Covered(store.doc) /\ Len(store.doc.keeps) = store.doc.size

DeadWaiters(d) == {id \in Elements(d.waiters) : WaiterKey(d.version, id) \notin store.keys}

\* How many wait behind d, as a member counts them.
Waiting(once, d) ==
    IF ~once THEN d.waiting
    ELSE LET n == d.waiting - Cardinality(DeadWaiters(d)) IN IF n < 0 THEN 0 ELSE n

\* What num_nodes_waiting() answers to member x.
Standing(x) ==
    IF store.doc.status = "final" /\ (store.doc.version = x.version \/ ~ToldWhenStale(x))
    THEN IF ToldWhenStale(x) /\ ~(Elements(store.doc.keeps) \subseteq store.keys) THEN 1
         ELSE IF ToldWhenStale(x) /\ OwnedSlots(x) /\ RankOf(store.doc, x.id) # x.rank THEN 1
         ELSE IF SparesParked(x) /\ store.doc.size >= MaxOf(x) THEN 0
         ELSE Waiting(CountedOnce(x), store.doc)
    ELSE IF ToldWhenStale(x) /\ ~Expected(x, store.doc, "closed") THEN 1 ELSE 0

OneLiveVersion ==
    \A i, j \in Members : w[i].version < w[j].version => Standing(w[i]) > 0

VersionNeverReused == ~hist.reused

ClosedIsFinal == hist.closed => store.doc.status = "closed"

WaitingWorkers(v) ==
    {i \in Slots : w[i].version = v /\ w[i].pc \in
        {"announce_read", "announce", "queue", "monitor_read", "alive", "monitor", "destroy"}}

CountMatchesWaiters ==
    store.doc.status = "final" =>
        LET live == Cardinality(WaitingWorkers(store.doc.version))
            leased == Cardinality({k \in store.keys : k[1] = "waiter" /\ k[2] = store.doc.version})
        IN  Waiting("counted_once" \in Rules, store.doc) <= IF live > leased THEN live ELSE leased

\* A member of ours that is told of waiting workers has room for one, or its version is over anyway.
ToldIfRoom ==
    \A i \in Members \ Theirs :
        Standing(w[i]) > 0 /\ store.doc.status = "final" /\ store.doc.version = w[i].version
        /\ Elements(store.doc.keeps) \subseteq store.keys => store.doc.size < MaxOf(w[i])

RECURSIVE Attempts(_)
Attempts(k) == IF k < 0 THEN 0 ELSE w[k].id[2] + 1 + Attempts(k - 1)

OneSlotEach ==
    /\ store.doc.size <= Attempts(N - 1)
    /\ \A k, m \in DOMAIN store.doc.owners :
          k # m => store.doc.owners[k] = None \/ store.doc.owners[k] # store.doc.owners[m]

LeaseKept ==
    left.lost_leases = LostLeases /\ left.lost_runs = LostRuns =>
        \A i \in Members : KeepAliveKey(w[i], w[i].version) \in store.keys

NoFatalRace == \A i \in Slots : w[i].pc # "fatal"

-----------------------------------------------------------------------------
(* What must come to pass (spec/liveness.py).  Time passes only while nobody has anything to do: a last call and a   *)
(* document's TTL are long against a request.  A member that is told meets again, as its agent makes it.             *)

Awake(x) ==
    CASE x.pc = "member" -> ClosedExpires(x) /\ Expected(x, store.doc, "closed")
      [] x.pc \in Ended -> FALSE
      [] x.pc = "wait" -> Changed(x)
      [] x.pc \in {"peers", "wait_final", "monitor", "foreign"} -> Woken(x)
      [] x.pc = "await_address" -> Addressed(x)
      [] OTHER -> TRUE

Quiet == \A i \in Slots : ~Awake(w[i])

\* fair.steps; of time.
LastCallEnds(i) == Quiet /\ LastCallOver(i)

\* fair.steps; of time, when every lease of the dead has run out.
OthersHaveStayed(i) == Quiet /\ (\A key \in store.keys : Held(key)) /\ OthersStay(i)

\* fair.steps; of time.
RunOut == Quiet /\ (\A i \in Slots : ~OwnsLastCall(w[i])) /\ DocumentExpires /\ UNCHANGED left

\* fair.steps; of the agent, which calls next_rendezvous again.
MeetAgain(i) == w[i].pc = "member" /\ Standing(w[i]) > 0 /\ MeetsAgain(i) /\ UNCHANGED left

Calm(i) == Progress(i) \/ LastCallEnds(i) \/ OthersHaveStayed(i) \/ MeetAgain(i)

Unfair == (\E i \in Slots : Mishap(i) \/ Rejoin(i)) \/ LoseLease \/ ExpireDocument \/ LoseRun

CalmFairness == \A i \in Slots : WF_vars(Calm(i))

TtlsRunOut == ExpireKey \/ RunOut

Fair == Init /\ [][(\E i \in Slots : Calm(i)) \/ Unfair \/ TtlsRunOut]_vars /\ CalmFairness /\ WF_vars(TtlsRunOut)

\* The same where no TTL runs out: nobody is to wait for one.
FairWithoutTtl == Init /\ [][(\E i \in Slots : Calm(i)) \/ Unfair]_vars /\ CalmFairness

IsClosed == store.doc.status = "closed"

Trying(x) == x.pc \notin Ended \cup {"withdraw", "close_read", "close", "close_create"}
Live(x) == Trying(x) \/ x.pc = "member"

\* Somebody tries to meet, and with those that do or are members there are enough.
EnoughTry ==
    /\ ~IsClosed
    /\ \E i \in Slots : Trying(w[i])
    /\ Cardinality({i \in Slots : Live(w[i])}) >= Min

MinAreMembers ==
    /\ store.doc.status = "final"
    /\ Cardinality({i \in Members : w[i].version = store.doc.version}) >= Min

EventuallyFinal == EnoughTry ~> (MinAreMembers \/ ~EnoughTry)

SomebodyUntold ==
    /\ ~IsClosed
    /\ \E i \in Members :
          w[i].version < hist.published /\ w[i].version # store.doc.version /\ Standing(w[i]) = 0

EventuallyTold == SomebodyUntold ~> ~SomebodyUntold

\* The document lists somebody whom nobody is.
DeadInDocument(d) ==
    \/ \E k \in 1 .. d.size :
          \A i \in Slots : Live(w[i]) =>
              IF d.owners[k] # None THEN w[i].id # d.owners[k]
              ELSE w[i].version # d.version \/ w[i].rank # k - 1
    \/ /\ d.status = "final"
       /\ Waiting("counted_once" \in Rules, d)
             > Cardinality({i \in Slots : Trying(w[i]) /\ w[i].version = d.version /\ w[i].rank = -1})

DeadEntry ==
    /\ ~IsClosed
    /\ \E i \in Slots : Live(w[i])
    /\ \/ \E key \in store.keys : ~Held(key)
       \/ DeadInDocument(store.doc)

EventuallyFree == DeadEntry ~> ~DeadEntry

\* A closed run can be used again one day.
ClosedEnds == IsClosed ~> ~IsClosed

-----------------------------------------------------------------------------
(* Must be violated: each is a state that the checks above are about. *)

NeverFinal == store.doc.status # "final"
NeverLastCall == \A i \in Slots : w[i].pc # "freeze"
NeverWaiting == \A i \in Slots : w[i].pc # "monitor"
NeverCounted == store.doc.status = "final" => Waiting("counted_once" \in Rules, store.doc) = 0
NeverVoid == \A i \in Slots : w[i].pc # "destroy"
NeverTwoVersions == \A i, j \in Members : w[i].version = w[j].version
NeverOvertaken == \A i \in Slots : w[i].pc = "publish" => store.count = w[i].version
NeverFoundOwnSlot == \A i \in Slots : w[i].pc = "read" => RankOf(store.doc, w[i].id) = -1
NeverWithdrawing == \A i \in Slots : w[i].pc # "withdraw"
NeverMismatch == \A i \in Slots : w[i].pc # "mismatch"
NeverMixed == \A i \in Slots : ~w[i].mixed
NeverReopened ==
    \/ left.closes = Closes
    \/ hist.closed
    \/ store.doc.status # "joinable"
    \/ \E i \in Slots : w[i].pc \in {"close_read", "close", "close_create"}
NeverAddressed == store.addresses = {}
=============================================================================
