---------------------------- MODULE RendezvousV3 ----------------------------
(***************************************************************************)
(* The rendezvous on etcd's v3 API: a lease and create-only keys for each  *)
(* participant, ranks by create revision, freeze and settle in one         *)
(* transaction each.  Twin of model/etcd3.py, model/worker3.py and         *)
(* model/system3.py: actions and operators bear their names, and the state *)
(* graphs are compared, edge by edge.                                      *)
(***************************************************************************)
EXTENDS Integers, Sequences, FiniteSets

CONSTANTS
    N, Min, Max,
    Rules,              \* the switches of model/worker3.py that are on
    Crashes, Restarts, LostReplies, EarlyLosses, Compactions, LostRuns, Closes, Timeouts, Reenters

VARIABLES
    store,              \* etcd: revision, compacted revision, state key, joined and alive keys, leases
    c,                  \* the participants, by slot
    left,               \* how many of each fault and move may still happen
    history             \* versions frozen, those that listed somebody gone, whether the run was closed

vars == <<store, c, left, history>>

On(switch) == switch \in Rules
Slots == 0 .. (N - 1)
Ended == {"closed", "timed_out", "fatal", "crashed"}
NoDoc == [status |-> "absent", mod |-> 0, version |-> 0, listed |-> <<>>]
NoView == [rev |-> 0, doc |-> NoDoc, joined |-> <<>>, alive |-> {}]
Range(s) == {s[k] : k \in DOMAIN s}
First(s, n) == IF Len(s) <= n THEN s ELSE SubSeq(s, 1, n)
Place(id, s) == CHOOSE k \in DOMAIN s : s[k] = id

-----------------------------------------------------------------------------
(* etcd (model/etcd3.py) *)

View(s) == [rev |-> s.rev, doc |-> s.doc, joined |-> s.joined, alive |-> s.alive]

Granted(s, id) == [s EXCEPT !.leases = @ \cup {id}]

EndLease(s, id) ==
    IF id \notin s.leases THEN s
    ELSE LET Other(x) == x # id
         IN  [s EXCEPT !.rev = IF id \in s.alive THEN @ + 1 ELSE @,
                       !.joined = SelectSeq(@, Other), !.alive = @ \ {id}, !.leases = @ \ {id}]

JoinRefused(s, id) == id \notin s.leases

Joined(s, id) ==
    IF On("join_once") /\ id \in s.alive THEN s
    ELSE [s EXCEPT !.rev = @ + 1, !.alive = @ \cup {id},
                   !.joined = IF id \in Range(@) THEN @ ELSE Append(@, id)]

PutState(s, doc, take) ==
    [s EXCEPT !.rev = @ + 1, !.doc = [doc EXCEPT !.mod = s.rev + 1], !.joined = IF take THEN <<>> ELSE @]

-----------------------------------------------------------------------------
(* What a participant decides (model/worker3.py) *)

Fresh(id) == [me |-> id, pc |-> "grant", then |-> "", seen |-> NoView,
              version |-> 0, rank |-> -1, world |-> 0, told |-> FALSE]

Plain(x, pc) == [Fresh(x.me) EXCEPT !.pc = pc]
Again(x) == Fresh(<<x.me[1], x.me[2] + 1>>)
Leaving(x, then) == [Plain(x, "leave") EXCEPT !.then = then]
Left(x) == IF x.then = "grant" THEN Again(x) ELSE Plain(x, x.then)

Free(v) ==
    CASE v.doc.status = "frozen" -> v.doc.listed[1] \notin v.alive
      [] v.doc.status = "final" -> ~On("wait_old_gone") \/ v.alive \cap Range(v.doc.listed) = {}
      [] OTHER -> v.doc.status \in {"absent", "void"}

Leads(x, v) == v.joined # <<>> /\ v.joined[1] = x.me

Waits(x, pc, v) == [x EXCEPT !.pc = pc, !.seen = v]

Decide(x, v) ==
    LET doc == v.doc
        listed == x.me \in Range(doc.listed)
    IN  CASE doc.status = "closed" -> Leaving(x, "closed")
          [] doc.status # "closed" /\ listed /\ doc.status = "final" ->
                [Plain(x, "member") EXCEPT !.version = doc.version, !.rank = Place(x.me, doc.listed) - 1,
                                           !.world = Len(doc.listed)]
          [] doc.status \notin {"closed", "final"} /\ listed ->
                IF doc.status = "void" \/ doc.listed[1] \notin v.alive THEN Leaving(x, "grant")
                ELSE Waits(x, IF doc.listed[1] = x.me THEN "settle" ELSE "wait", v)
          [] doc.status # "closed" /\ ~listed ->
                IF x.me \notin Range(v.joined) THEN Leaving(x, "grant")
                ELSE Waits(x, IF Leads(x, v) /\ Free(v) /\ Len(v.joined) >= Max THEN "freeze" ELSE "wait", v)

LastCallRuns(x) == x.pc = "wait" /\ Leads(x, x.seen) /\ Free(x.seen) /\ Len(x.seen.joined) >= Min

Wakes(x) ==
    LET seen == x.seen
        listed == Range(seen.doc.listed)
    IN  \/ store.doc.mod # seen.doc.mod
        \/ IF x.me \in listed THEN On("watch_leader") /\ seen.doc.listed[1] \notin store.alive
           ELSE IF Leads(x, seen)
                THEN store.joined # seen.joined \/ store.alive \cap listed # seen.alive \cap listed
                ELSE On("watch_leader") /\ seen.joined[1] \notin Range(store.joined)

Moved(x) == On("compare_state") /\ store.doc.mod # x.seen.doc.mod

Frozen(x) ==
    IF Moved(x) THEN store
    ELSE PutState(store,
                  [status |-> "frozen", mod |-> 0,
                   version |-> IF On("revision_versions") THEN store.rev + 1 ELSE store.doc.version + 1,
                   listed |-> First(x.seen.joined, Max)],
                  TRUE)

Sound(x) == ~On("check_alive") \/ Range(x.seen.doc.listed) \subseteq x.seen.alive

Settled(x) ==
    IF Moved(x) THEN store
    ELSE PutState(store, [x.seen.doc EXCEPT !.status = IF Sound(x) THEN "final" ELSE "void"], FALSE)

Stale(x) ==
    \/ store.doc.status # "final"
    \/ store.doc.version # x.version
    \/ ~(Range(store.doc.listed) \subseteq store.alive)
    \/ store.joined # <<>> /\ x.world < Max

-----------------------------------------------------------------------------
(* Requests *)

Pay(what) == left[what] > 0 /\ left' = [left EXCEPT ![what] = @ - 1]
Become(i, x) == c' = [c EXCEPT ![i] = x]

Wrote(s) ==
    /\ store' = s
    /\ history' =
        LET froze == s.doc.mod # store.doc.mod /\ s.doc.status = "frozen"
        IN  [versions |-> IF froze THEN Append(history.versions, s.doc.version) ELSE history.versions,
             ghosts |-> IF froze /\ ~(Range(s.doc.listed) \subseteq s.alive)
                        THEN history.ghosts \cup {s.doc.version} ELSE history.ghosts,
             closed |-> history.closed \/ s.doc.status = "closed"]

Grant(i) ==
    c[i].pc = "grant" /\ Wrote(Granted(store, c[i].me)) /\ Become(i, [c[i] EXCEPT !.pc = "join"]) /\ UNCHANGED left

Join(i) ==
    /\ c[i].pc = "join"
    /\ IF JoinRefused(store, c[i].me)
       THEN Become(i, Leaving(c[i], "grant")) /\ UNCHANGED <<store, history>>
       ELSE LET s == Joined(store, c[i].me) IN Wrote(s) /\ Become(i, Decide(c[i], View(s)))
    /\ UNCHANGED left

Freeze(i) ==
    /\ c[i].pc = "freeze"
    /\ LET s == Frozen(c[i]) IN Wrote(s) /\ Become(i, Decide(c[i], View(s)))
    /\ UNCHANGED left

Settle(i) ==
    /\ c[i].pc = "settle"
    /\ LET s == Settled(c[i]) IN Wrote(s) /\ Become(i, Decide(c[i], View(s)))
    /\ UNCHANGED left

Leave(i) ==
    c[i].pc = "leave" /\ Wrote(EndLease(store, c[i].me)) /\ Become(i, Left(c[i])) /\ UNCHANGED left

LoseReply(i) ==
    /\ Pay("lost_replies")
    /\ \/ c[i].pc = "grant" /\ Wrote(Granted(store, c[i].me))
       \/ c[i].pc = "join" /\ ~JoinRefused(store, c[i].me) /\ Wrote(Joined(store, c[i].me))
       \/ c[i].pc = "freeze" /\ Wrote(Frozen(c[i]))
       \/ c[i].pc = "settle" /\ Wrote(Settled(c[i]))
       \/ c[i].pc = "leave" /\ Wrote(EndLease(store, c[i].me))
    /\ UNCHANGED c

Look(i) == c[i].pc = "look" /\ Become(i, Decide(c[i], View(store))) /\ UNCHANGED <<store, left, history>>

Await(i) ==
    /\ c[i].pc = "wait"
    /\ IF c[i].seen.rev + 1 < store.compacted
       THEN Become(i, Plain(c[i], IF On("reread") THEN "look" ELSE "fatal"))
       ELSE Wakes(c[i]) /\ Become(i, Decide(c[i], View(store)))
    /\ UNCHANGED <<store, left, history>>

-----------------------------------------------------------------------------
(* Events *)

LastCallOver(i) ==
    LastCallRuns(c[i]) /\ Become(i, [c[i] EXCEPT !.pc = "freeze"]) /\ UNCHANGED <<store, left, history>>

LeaseLost(i) ==
    /\ On("watch_lease")
    /\ c[i].me \notin store.leases
    /\ c[i].pc \in {"wait", "look", "freeze", "settle"}
    /\ Become(i, Leaving(c[i], "grant"))
    /\ UNCHANGED <<store, left, history>>

Notice(i) ==
    /\ c[i].pc = "member" /\ ~c[i].told /\ Stale(c[i])
    /\ Become(i, [c[i] EXCEPT !.told = TRUE])
    /\ UNCHANGED <<store, left, history>>

Reenter(i) ==
    /\ c[i].pc = "member" /\ c[i].told
    /\ Pay("reenters")
    /\ Become(i, Leaving(c[i], "grant"))
    /\ UNCHANGED <<store, history>>

Close(i) ==
    /\ c[i].pc \notin Ended
    /\ store.doc.status # "closed"
    /\ Pay("closes")
    /\ Wrote(PutState(store, [NoDoc EXCEPT !.status = "closed"], FALSE))
    /\ UNCHANGED c

-----------------------------------------------------------------------------
(* Faults *)

Crash(i) ==
    c[i].pc \notin Ended /\ Pay("crashes") /\ Become(i, Plain(c[i], "crashed")) /\ UNCHANGED <<store, history>>

Restart(i) ==
    c[i].pc = "crashed" /\ Pay("restarts") /\ Become(i, Again(c[i])) /\ UNCHANGED <<store, history>>

Timeout(i) ==
    /\ c[i].pc \notin Ended \cup {"member", "leave"}
    /\ Pay("timeouts")
    /\ Become(i, Leaving(c[i], "timed_out"))
    /\ UNCHANGED <<store, history>>

Holds(id) == c[id[1]].me = id /\ c[id[1]].pc \notin Ended

Expire ==
    \E id \in store.leases : ~Holds(id) /\ store' = EndLease(store, id) /\ UNCHANGED <<c, left, history>>

LoseLease ==
    \E id \in store.leases :
        Holds(id) /\ Pay("early_losses") /\ store' = EndLease(store, id) /\ UNCHANGED <<c, history>>

Compact ==
    /\ store.compacted # store.rev
    /\ Pay("compactions")
    /\ store' = [store EXCEPT !.compacted = store.rev]
    /\ UNCHANGED <<c, history>>

LoseRun ==
    /\ store.doc.mod # 0
    /\ Pay("lost_runs")
    /\ store' = [store EXCEPT !.rev = @ + 1, !.doc = NoDoc]
    /\ UNCHANGED <<c, history>>

-----------------------------------------------------------------------------
Init ==
    /\ store = [rev |-> 1, compacted |-> 0, doc |-> NoDoc, joined |-> <<>>, alive |-> {}, leases |-> {}]
    /\ c = [i \in Slots |-> Fresh(<<i, 0>>)]
    /\ left = [crashes |-> Crashes, restarts |-> Restarts, lost_replies |-> LostReplies,
               early_losses |-> EarlyLosses, compactions |-> Compactions, lost_runs |-> LostRuns,
               closes |-> Closes, timeouts |-> Timeouts, reenters |-> Reenters]
    /\ history = [versions |-> <<>>, ghosts |-> {}, closed |-> FALSE]

Next ==
    \/ \E i \in Slots : Grant(i)
    \/ \E i \in Slots : Join(i)
    \/ \E i \in Slots : Freeze(i)
    \/ \E i \in Slots : Settle(i)
    \/ \E i \in Slots : Leave(i)
    \/ \E i \in Slots : LoseReply(i)
    \/ \E i \in Slots : Look(i)
    \/ \E i \in Slots : Await(i)
    \/ \E i \in Slots : LastCallOver(i)
    \/ \E i \in Slots : LeaseLost(i)
    \/ \E i \in Slots : Notice(i)
    \/ \E i \in Slots : Reenter(i)
    \/ \E i \in Slots : Close(i)
    \/ \E i \in Slots : Crash(i)
    \/ \E i \in Slots : Restart(i)
    \/ \E i \in Slots : Timeout(i)
    \/ Expire
    \/ LoseLease
    \/ Compact
    \/ LoseRun

Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------
(* What must hold (spec/v3.py) *)

Members == {i \in Slots : c[i].pc = "member"}

TypeOK ==
    /\ store.compacted <= store.rev /\ store.doc.mod <= store.rev
    /\ store.alive \subseteq store.leases
    /\ \A i \in Slots :
        /\ c[i].me[1] = i
        /\ c[i].pc \in Ended \cup {"grant", "join", "wait", "look", "freeze", "settle", "leave", "member"}

RankUnique ==
    \A i, k \in Members : i # k => <<c[i].version, c[i].rank>> # <<c[k].version, c[k].rank>>

RanksDense == \A i \in Members : c[i].rank \in 0 .. (c[i].world - 1)

WorldAgree == \A i, k \in Members : c[i].version = c[k].version => c[i].world = c[k].world

WorldBounds == \A i \in Members : c[i].world \in Min .. Max

FinalAllConfirmed == store.doc.status = "final" => store.doc.version \notin history.ghosts

OneLiveVersion ==
    left.lost_runs = LostRuns =>
        Cardinality({c[i].version : i \in {k \in Members : c[k].me \in store.alive}}) <= 1

VersionNeverReused == Cardinality(Range(history.versions)) = Len(history.versions)

ClosedIsFinal == (left.lost_runs = LostRuns /\ history.closed) => store.doc.status = "closed"

CountMatchesWaiters ==
    /\ Range(store.joined) \subseteq store.alive
    /\ store.doc.status \in {"frozen", "final"} => Range(store.joined) \cap Range(store.doc.listed) = {}

NoFatalRace == \A i \in Slots : c[i].pc # "fatal"

-----------------------------------------------------------------------------
(* What must be violated: situations that the above is about *)

NeverMember == Members = {}
NeverVoid == store.doc.status # "void"
NeverTold == \A i \in Members : ~c[i].told
NeverSecond == Len(history.versions) < 2
=============================================================================
