----------------------------- MODULE Rendezvous -----------------------------
(***************************************************************************)
(* PyTorch's etcd rendezvous, request by request, with crashes, lost       *)
(* replies and expiring leases as ordinary steps.  Twin of model/: actions *)
(* and operators bear the names of model/worker.py, and the state graphs   *)
(* are compared, edge by edge.                                             *)
(*                                                                         *)
(* A worker's step is one request: etcd applies it and the worker sees the *)
(* reply.  LoseReply applies the request and leaves the worker where it    *)
(* is, so that it repeats it, as an HTTP layer does.  Reading a watch:     *)
(* AwaitX is enabled once what it waits for has happened.                  *)
(***************************************************************************)
EXTENDS Integers, Sequences, FiniteSets

CONSTANTS
    N,                  \* number of workers
    Min, Max,           \* bounds of the world size
    Rules,              \* the switches of model/worker.py that are on
    Crashes, Restarts, LostReplies, Expiries, LostLeases,
    Rejoins, Closes, Deadlines
                        \* how many of each fault or free choice a run may contain

VARIABLES
    store,              \* etcd: document, its TTL mark, counter, directories, leased keys
    w,                  \* the workers, by slot
    left,               \* how many of each fault may still happen
    hist                \* what happened, as far as a requirement speaks of the past

vars == <<store, w, left, hist>>

Slots == 0 .. (N - 1)
None == <<>>

Reread == "reread" \in Rules     \* PyTorch's habit: read again before each write
OwnedSlots == "owned_slots" \in Rules
IdempotentConfirm == "idempotent_confirm" \in Rules
CountedOnce == "counted_once" \in Rules
RacesNotFatal == "races_not_fatal" \in Rules
LeaveAtOnce == "leave_at_once" \in Rules
EarlyLease == "early_lease" \in Rules
ToldWhenStale == "told_when_stale" \in Rules
ClosingAlwaysCloses == "closing_always_closes" \in Rules

-----------------------------------------------------------------------------
(* The document (model/document.py) *)

NoDoc == [status |-> "absent", version |-> 0, size |-> 0, owners |-> None,
          frozen |-> FALSE, keeps |-> None, waiting |-> -1,
          creator |-> None, waiters |-> None]

Elements(seq) == {seq[k] : k \in DOMAIN seq}

Setup(x) == [NoDoc EXCEPT !.status = "setup",
                          !.creator = IF OwnedSlots THEN x.id ELSE None]

Opened(v) == [NoDoc EXCEPT !.status = "joinable", !.version = v]

Frozen(d) == [d EXCEPT !.status = "frozen", !.frozen = TRUE]

Joined(d, x) ==
    LET j == [d EXCEPT !.size = @ + 1,
                       !.owners = IF OwnedSlots THEN Append(@, x.id) ELSE @]
    IN  IF j.size = Max THEN Frozen(j) ELSE j

Covered(d) == Cardinality(Elements(d.keeps)) = d.size

ConfirmedBy(d, key) ==
    LET c == [d EXCEPT !.keeps =
                 IF IdempotentConfirm /\ key \in Elements(@) THEN @ ELSE Append(@, key)]
        done == IF IdempotentConfirm THEN Covered(c) ELSE Len(c.keeps) = c.size
    IN  IF done THEN [c EXCEPT !.status = "final", !.waiting = 0] ELSE c

Announced(d, x) ==
    IF ~CountedOnce THEN [d EXCEPT !.waiting = @ + 1]
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

KeepAliveKey(x, v) == IF EarlyLease THEN AliveKey(v, x.id) ELSE <<"rank", v, x.rank>>

Watched(d) ==
    IF d.status = "final" THEN Elements(d.keeps)
    ELSE IF EarlyLease
         THEN {AliveKey(d.version, id) : id \in Elements(d.owners)} \cup Elements(d.keeps)
         ELSE {}

-----------------------------------------------------------------------------
(* What a worker makes of a document (model/worker.py) *)

At(x, pc) == [x EXCEPT !.pc = pc, !.seen = NoDoc, !.version = 0, !.rank = -1, !.world = 0]
Seeing(x, pc, d) == [At(x, pc) EXCEPT !.seen = d, !.version = d.version]
Phase(x, pc) == [At(x, pc) EXCEPT !.version = x.version, !.rank = x.rank]

Enter(x) ==
    IF x.lease = None THEN At(x, "create")
    ELSE IF LeaveAtOnce THEN At(x, "leave")
    ELSE [At(x, "create") EXCEPT !.lease = None]

Rank(x, d) ==
    IF ~OwnedSlots THEN (IF x.version = d.version THEN x.rank ELSE -1)
    ELSE IF EarlyLease /\ x.lease # AliveKey(d.version, x.id) THEN -1
    ELSE RankOf(d, x.id)

HasConfirmed(x, d) ==
    IF IdempotentConfirm THEN KeepAliveKey(x, x.version) \in Elements(d.keeps)
    ELSE x.pc \in {"wait_final", "final_read", "confirm"}

ToConfirm(x, d) ==
    [Seeing(x, IF EarlyLease THEN "confirm" ELSE "keep_alive", d) EXCEPT !.rank = x.rank]

Met(x, d) ==
    IF IdempotentConfirm /\ ~(Covered(d) /\ HasConfirmed(x, d))
    THEN Seeing(x, "destroy", d)
    ELSE [At(x, "member") EXCEPT !.version = d.version, !.rank = x.rank, !.world = d.size]

Outside(x, d) ==
    IF x.lease \notin {None, IF d.status = "final" THEN WaiterKey(d.version, x.id)
                                                   ELSE KeepAliveKey(x, d.version)}
    THEN Enter(x)
    ELSE IF d.status = "final"
         THEN IF Covered(d) THEN Seeing(x, "alive", d) ELSE Seeing(x, "destroy", d)
    ELSE IF d.status = "joinable" /\ d.size < Max
         THEN IF Reread THEN [At(x, "join_read") EXCEPT !.version = d.version]
              ELSE IF EarlyLease /\ x.lease = None THEN Seeing(x, "register", d)
              ELSE Seeing(x, "join", d)
    ELSE [At(x, "wait") EXCEPT !.seen = d]

Dispatch(x, d, missing) ==
    IF d = NoDoc THEN Enter(x)
    ELSE IF d.status = "closed" THEN At(x, "closed")
    ELSE IF d.status = "setup"
         THEN IF OwnedSlots /\ d.creator = x.id THEN At(x, "counter")
              ELSE [At(x, "wait") EXCEPT !.seen = d]
    ELSE LET r == Rank(x, d)
             inside == [x EXCEPT !.version = d.version, !.rank = r]
         IN  IF r = -1 THEN Outside(x, d)
             ELSE IF d.status = "final" THEN Met(inside, d)
             ELSE IF missing # {} THEN Seeing(x, "destroy", d)
             ELSE IF d.status = "frozen" /\ ~HasConfirmed(inside, d) THEN ToConfirm(inside, d)
             ELSE [Seeing(x, IF d.status = "joinable" THEN "peers" ELSE "wait_final", d)
                      EXCEPT !.rank = r]

Expected(x, d, status) == d.status = status /\ d.version = x.version

OnPeers(x, d, missing) ==
    IF ~Reread THEN Dispatch(x, d, missing)
    ELSE IF Expected(x, d, "joinable") THEN [Seeing(x, "peers", d) EXCEPT !.rank = x.rank]
    ELSE IF Expected(x, d, "frozen") THEN Phase(x, "confirm_read")
    ELSE Enter(x)

OnWaitFinal(x, d, missing) ==
    IF ~Reread THEN Dispatch(x, d, missing)
    ELSE IF Expected(x, d, "final") THEN Met(x, d)
    ELSE IF Expected(x, d, "frozen") THEN [Seeing(x, "wait_final", d) EXCEPT !.rank = x.rank]
    ELSE Enter(x)

OnMonitor(x, d, missing) ==
    IF Expected(x, d, "final")
    THEN Seeing(x, IF missing # {} THEN "destroy" ELSE "alive", d)
    ELSE IF Reread THEN Enter(x) ELSE Dispatch(x, d, {})

LookAgain(x) == IF OwnedSlots THEN At(x, "read") ELSE Phase(x, "read")

Refused(x, phase) ==
    IF ~Reread THEN LookAgain(x)
    ELSE IF store.doc = NoDoc THEN Enter(x)
    ELSE Phase(x, phase)

-----------------------------------------------------------------------------
(* What etcd makes of a write (model/etcd.py): the store after it, and whether it was done *)

Yes(s) == [store |-> s, ok |-> TRUE]
No == [store |-> store, ok |-> FALSE]

Swap(old, new, ttl) ==
    IF store.doc = old THEN Yes([store EXCEPT !.doc = new, !.ttl = ttl]) ELSE No

CreateDoc(new, ttl) == Swap(NoDoc, new, ttl)

Apply(x) ==
    CASE x.pc = "create" -> CreateDoc(Setup(x), TRUE)
      [] x.pc = "bump" -> IF store.count = x.version - 1
                          THEN Yes([store EXCEPT !.count = x.version]) ELSE No
      [] x.pc = "mkdir" -> IF x.version \in store.dirs THEN No
                           ELSE Yes([store EXCEPT !.dirs = @ \cup {x.version}])
      [] x.pc = "publish" -> Swap(Setup(x), Opened(x.version), FALSE)
      [] x.pc \in {"register", "keep_alive"} ->
             Yes([store EXCEPT !.keys = @ \cup {KeepAliveKey(x, x.version)}])
      [] x.pc = "join" -> LET j == Joined(x.seen, x)
                          IN  Swap(x.seen, j, j.status = "frozen" \/ j.size >= Min)
      [] x.pc = "freeze" -> Swap(x.seen, Frozen(x.seen), TRUE)
      [] x.pc = "confirm" -> LET c == ConfirmedBy(x.seen, KeepAliveKey(x, x.version))
                             IN  Swap(x.seen, c, c.status # "final")
      [] x.pc = "queue" -> Yes([store EXCEPT !.keys = @ \cup {WaiterKey(x.version, x.id)}])
      [] x.pc = "announce" -> Swap(x.seen, Announced(x.seen, x), FALSE)
      [] x.pc = "destroy" -> Swap(x.seen, NoDoc, FALSE)
      [] x.pc \in {"leave", "withdraw"} -> Yes([store EXCEPT !.keys = @ \ {x.lease}])
      [] x.pc = "close" -> Swap(x.seen, ClosedOf(x.seen), FALSE)
      [] x.pc = "close_create" -> CreateDoc(ClosedOf(NoDoc), FALSE)

Writes == {"create", "bump", "mkdir", "publish", "register", "keep_alive", "join", "freeze",
           "confirm", "queue", "announce", "destroy", "leave", "withdraw", "close", "close_create"}

-----------------------------------------------------------------------------
(* Steps *)

Remember(s) ==
    IF s.doc = store.doc \/ s.doc = NoDoc THEN hist
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
Missing(x) == IF Changed(x) THEN {} ELSE Watched(x.seen) \ store.keys
Woken(x) == IF Changed(x) THEN TRUE ELSE Missing(x) # {}  \* not a disjunction: TLC would count it twice

\* model/worker.py: one action per line of TABLE, in its order.

Create(i) ==
    /\ w[i].pc = "create"
    /\ Write(i, At(w[i], "counter"), At(w[i], "read"))

Read(i) ==
    /\ w[i].pc = "read"
    /\ Look(i, IF store.doc.status = "final" /\ Reread
               THEN [At(w[i], "announce_read") EXCEPT !.version = store.doc.version]
               ELSE Dispatch(w[i], store.doc, {}))

Wait(i) ==
    /\ w[i].pc = "wait"
    /\ Changed(w[i])
    /\ Look(i, IF Reread THEN Enter(w[i]) ELSE Dispatch(w[i], store.doc, {}))

ReadCounter(i) ==
    /\ w[i].pc = "counter"
    /\ Look(i, [At(w[i], "bump") EXCEPT !.version = store.count + 1])

Bump(i) ==
    /\ w[i].pc = "bump"
    /\ Write(i, Phase(w[i], "mkdir"), At(w[i], IF RacesNotFatal THEN "read" ELSE "fatal"))

MakeDirectory(i) ==
    /\ w[i].pc = "mkdir"
    /\ Write(i, Phase(w[i], "publish"), IF RacesNotFatal THEN Phase(w[i], "publish") ELSE Enter(w[i]))

Publish(i) ==
    /\ w[i].pc = "publish"
    /\ Write(i, Dispatch(w[i], Opened(w[i].version), {}), IF Reread THEN Enter(w[i]) ELSE At(w[i], "read"))

Register(i) ==
    /\ w[i].pc = "register"
    /\ LET x == [Seeing(w[i], "join", w[i].seen) EXCEPT !.lease = KeepAliveKey(w[i], w[i].version)]
       IN  Write(i, x, x)

JoinRead(i) ==
    /\ w[i].pc = "join_read"
    /\ Look(i, IF Expected(w[i], store.doc, "joinable") /\ store.doc.size < Max
               THEN Seeing(w[i], "join", store.doc)
               ELSE Enter(w[i]))

Join(i) ==
    /\ w[i].pc = "join"
    /\ LET x == [w[i] EXCEPT !.rank = w[i].seen.size]
       IN  Write(i, IF Reread THEN Phase(x, "peers_read") ELSE Dispatch(x, Joined(x.seen, x), {}),
                    Refused(w[i], "join_read"))

PeersRead(i) ==
    /\ w[i].pc = "peers_read"
    /\ Look(i, OnPeers(w[i], store.doc, {}))

AwaitPeers(i) ==
    /\ w[i].pc = "peers"
    /\ Woken(w[i])
    /\ Look(i, OnPeers(w[i], store.doc, Missing(w[i])))

OwnsLastCall(x) == x.pc = "peers" /\ x.rank = Min - 1

LastCallOver(i) ==
    /\ OwnsLastCall(w[i])
    /\ Look(i, [Seeing(w[i], "freeze", w[i].seen) EXCEPT !.rank = w[i].rank])

Freeze(i) ==
    /\ w[i].pc = "freeze"
    /\ Write(i, IF Reread THEN Phase(w[i], "peers_read") ELSE Dispatch(w[i], Frozen(w[i].seen), {}),
                Refused(w[i], "peers_read"))

ConfirmRead(i) ==
    /\ w[i].pc = "confirm_read"
    /\ Look(i, IF Expected(w[i], store.doc, "frozen") THEN ToConfirm(w[i], store.doc) ELSE Enter(w[i]))

KeepAlive(i) ==
    /\ w[i].pc = "keep_alive"
    /\ LET x == [w[i] EXCEPT !.pc = "confirm"] IN Write(i, x, x)

Confirm(i) ==
    /\ w[i].pc = "confirm"
    /\ LET key == KeepAliveKey(w[i], w[i].version)
           x == [w[i] EXCEPT !.lease = key]
       IN  Write(i, IF Reread THEN Phase(x, "final_read") ELSE Dispatch(x, ConfirmedBy(x.seen, key), {}),
                    Refused(w[i], "confirm_read"))

FinalRead(i) ==
    /\ w[i].pc = "final_read"
    /\ Look(i, OnWaitFinal(w[i], store.doc, {}))

AwaitFinal(i) ==
    /\ w[i].pc = "wait_final"
    /\ Woken(w[i])
    /\ Look(i, OnWaitFinal(w[i], store.doc, Missing(w[i])))

AnnounceRead(i) ==
    /\ w[i].pc = "announce_read"
    /\ Look(i, IF Expected(w[i], store.doc, "final")
               THEN Seeing(w[i], "announce", store.doc)
               ELSE Enter(w[i]))

Queue(i) ==
    /\ w[i].pc = "queue"
    /\ LET x == [Seeing(w[i], "announce", w[i].seen) EXCEPT !.lease = WaiterKey(w[i].version, w[i].id)]
       IN  Write(i, x, x)

Announce(i) ==
    /\ w[i].pc = "announce"
    /\ Write(i, IF Reread THEN Phase(w[i], "monitor_read")
                ELSE Seeing(w[i], "monitor", Announced(w[i].seen, w[i])),
                Refused(w[i], "announce_read"))

MonitorRead(i) ==
    /\ w[i].pc = "monitor_read"
    /\ Look(i, OnMonitor(w[i], store.doc, {}))

CheckAlive(i) ==
    /\ w[i].pc = "alive"
    /\ Look(i, IF w[i].version \notin store.dirs /\ Reread THEN Enter(w[i])
               ELSE IF ~(Watched(w[i].seen) \subseteq store.keys) THEN Seeing(w[i], "destroy", w[i].seen)
               ELSE IF Reread \/ w[i].id \in Elements(w[i].seen.waiters)
                    THEN Seeing(w[i], "monitor", w[i].seen)
               ELSE Seeing(w[i], IF CountedOnce /\ w[i].lease = None THEN "queue" ELSE "announce", w[i].seen))

Monitor(i) ==
    /\ w[i].pc = "monitor"
    /\ Woken(w[i])
    /\ Look(i, OnMonitor(w[i], store.doc, Missing(w[i])))

Destroy(i) ==
    /\ w[i].pc = "destroy"
    /\ Write(i, Enter(w[i]), IF Reread THEN Enter(w[i]) ELSE At(w[i], "read"))

Leave(i) ==
    /\ w[i].pc = "leave"
    /\ LET x == [At(w[i], "create") EXCEPT !.lease = None] IN Write(i, x, x)

Withdraw(i) ==
    /\ w[i].pc = "withdraw"
    /\ LET x == [At(w[i], "timed_out") EXCEPT !.lease = None] IN Write(i, x, x)

CloseRead(i) ==
    /\ w[i].pc = "close_read"
    /\ Look(i, IF store.doc.status = "closed" THEN At(w[i], "closed")
               ELSE IF store.doc = NoDoc
                    THEN At(w[i], IF ClosingAlwaysCloses THEN "close_create" ELSE "fatal")
               ELSE [At(w[i], "close") EXCEPT !.seen = store.doc])

Close(i) ==
    /\ w[i].pc = "close"
    /\ Write(i, At(w[i], "closed"), At(w[i], "close_read"))

CloseCreate(i) ==
    /\ w[i].pc = "close_create"
    /\ Write(i, At(w[i], "closed"), At(w[i], "close_read"))

-----------------------------------------------------------------------------
(* Faults and free choices (model/system.py) *)

Ended == {"member", "closed", "timed_out", "fatal", "crashed"}

Pay(what) == left[what] > 0 /\ left' = [left EXCEPT ![what] = @ - 1]

Become(i, x) == w' = [w EXCEPT ![i] = x] /\ UNCHANGED <<store, hist>>

NextId(x) == <<x.id[1], x.id[2] + 1>>

Fresh(id) == [id |-> id, pc |-> "create", seen |-> NoDoc, version |-> 0, rank |-> -1,
              world |-> 0, lease |-> None]

LoseReply(i) ==
    /\ w[i].pc \in Writes
    /\ Pay("lost_replies")
    /\ store' = Apply(w[i]).store
    /\ store' # store
    /\ hist' = Remember(store')
    /\ UNCHANGED w

Crash(i) ==
    /\ w[i].pc \notin Ended \/ w[i].pc = "member"
    /\ Pay("crashes")
    /\ Become(i, [Fresh(w[i].id) EXCEPT !.pc = "crashed"])

Restart(i) ==
    /\ w[i].pc = "crashed"
    /\ Pay("restarts")
    /\ Become(i, Fresh(NextId(w[i])))

Rejoin(i) ==
    /\ w[i].pc = "member"
    /\ Pay("rejoins")
    /\ Become(i, Enter([w[i] EXCEPT !.id = NextId(w[i])]))

StartClosing(i) ==
    /\ w[i].pc \in {"member", "create"}
    /\ Pay("closes")
    /\ Become(i, At(w[i], "close_read"))

Deadline(i) ==
    /\ w[i].pc \notin Ended \cup {"leave", "withdraw", "close_read", "close", "close_create"}
    /\ Pay("deadlines")
    /\ Become(i, IF w[i].lease # None /\ LeaveAtOnce THEN At(w[i], "withdraw")
                 ELSE [At(w[i], "timed_out") EXCEPT !.lease = None])

\* A key that was written just now lives for its TTL, too.
Held(key) == \E i \in Slots :
    IF w[i].pc = "confirm" /\ w[i].lease = None
    THEN key = KeepAliveKey(w[i], w[i].version)
    ELSE key = w[i].lease

Drop(key) == store' = [store EXCEPT !.keys = @ \ {key}] /\ UNCHANGED <<w, hist>>

ExpireKey == \E key \in store.keys : ~Held(key) /\ Drop(key) /\ UNCHANGED left

LoseLease == \E key \in store.keys : Held(key) /\ Pay("lost_leases") /\ Drop(key)

ExpireDocument ==
    /\ store.ttl
    /\ Pay("expiries")
    /\ store' = [store EXCEPT !.doc = NoDoc, !.ttl = FALSE]
    /\ UNCHANGED <<w, hist>>

-----------------------------------------------------------------------------
Init ==
    /\ store = [doc |-> NoDoc, ttl |-> FALSE, count |-> 0, dirs |-> {}, keys |-> {}]
    /\ w = [i \in Slots |-> Fresh(<<i, 0>>)]
    /\ left = [crashes |-> Crashes, restarts |-> Restarts, lost_replies |-> LostReplies,
               expiries |-> Expiries, lost_leases |-> LostLeases, rejoins |-> Rejoins,
               closes |-> Closes, deadlines |-> Deadlines]
    /\ hist = [published |-> 0, reused |-> FALSE, closed |-> FALSE]

Next ==
    \/ \E i \in Slots : Create(i)
    \/ \E i \in Slots : Read(i)
    \/ \E i \in Slots : Wait(i)
    \/ \E i \in Slots : ReadCounter(i)
    \/ \E i \in Slots : Bump(i)
    \/ \E i \in Slots : MakeDirectory(i)
    \/ \E i \in Slots : Publish(i)
    \/ \E i \in Slots : Register(i)
    \/ \E i \in Slots : JoinRead(i)
    \/ \E i \in Slots : Join(i)
    \/ \E i \in Slots : PeersRead(i)
    \/ \E i \in Slots : AwaitPeers(i)
    \/ \E i \in Slots : LastCallOver(i)
    \/ \E i \in Slots : Freeze(i)
    \/ \E i \in Slots : ConfirmRead(i)
    \/ \E i \in Slots : KeepAlive(i)
    \/ \E i \in Slots : Confirm(i)
    \/ \E i \in Slots : FinalRead(i)
    \/ \E i \in Slots : AwaitFinal(i)
    \/ \E i \in Slots : AnnounceRead(i)
    \/ \E i \in Slots : CheckAlive(i)
    \/ \E i \in Slots : Queue(i)
    \/ \E i \in Slots : Announce(i)
    \/ \E i \in Slots : MonitorRead(i)
    \/ \E i \in Slots : Monitor(i)
    \/ \E i \in Slots : Destroy(i)
    \/ \E i \in Slots : Leave(i)
    \/ \E i \in Slots : Withdraw(i)
    \/ \E i \in Slots : CloseRead(i)
    \/ \E i \in Slots : Close(i)
    \/ \E i \in Slots : CloseCreate(i)
    \/ \E i \in Slots : LoseReply(i)
    \/ \E i \in Slots : Crash(i)
    \/ \E i \in Slots : Restart(i)
    \/ \E i \in Slots : Rejoin(i)
    \/ \E i \in Slots : StartClosing(i)
    \/ \E i \in Slots : Deadline(i)
    \/ ExpireKey
    \/ LoseLease
    \/ ExpireDocument

Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------
(* What must hold (spec/invariants.py) *)

Members == {i \in Slots : w[i].pc = "member"}

TypeOK ==
    /\ store.doc.status \in {"absent", "setup", "joinable", "frozen", "final", "closed"}
    /\ store.doc.size \in 0 .. Max
    /\ store.ttl \in BOOLEAN
    /\ store.count \in Nat
    /\ \A i \in Slots : w[i].rank \in -1 .. (Max - 1)
    /\ \A b \in DOMAIN left : left[b] \in Nat

RankUnique ==
    \A i, j \in Members :
        i # j => <<w[i].version, w[i].rank>> # <<w[j].version, w[j].rank>>

RanksDense == \A i \in Members : w[i].rank \in 0 .. (w[i].world - 1)

WorldAgree == \A i, j \in Members : w[i].version = w[j].version => w[i].world = w[j].world

WorldBounds == \A i \in Members : w[i].world \in Min .. Max

FinalAllConfirmed ==
    store.doc.status = "final" => Covered(store.doc) /\ Len(store.doc.keeps) = store.doc.size

DeadWaiters(d) == {id \in Elements(d.waiters) : WaiterKey(d.version, id) \notin store.keys}

Waiting(d) ==
    IF ~CountedOnce THEN d.waiting
    ELSE LET n == d.waiting - Cardinality(DeadWaiters(d)) IN IF n < 0 THEN 0 ELSE n

\* What num_nodes_waiting() answers to member x.
Standing(x) ==
    IF store.doc.status = "final" /\ (store.doc.version = x.version \/ ~ToldWhenStale)
    THEN IF ToldWhenStale /\ ~(Elements(store.doc.keeps) \subseteq store.keys) THEN 1 ELSE Waiting(store.doc)
    ELSE IF ToldWhenStale /\ ~Expected(x, store.doc, "closed") THEN 1 ELSE 0

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
        IN  Waiting(store.doc) <= IF live > leased THEN live ELSE leased

NoFatalRace == \A i \in Slots : w[i].pc # "fatal"
=============================================================================
