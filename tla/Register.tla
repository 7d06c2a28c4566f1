------------------------------ MODULE Register ------------------------------
(***************************************************************************)
(* EtcdRendezvousBackend's register: one key of etcd, replaced by          *)
(* compare-and-swap on its modifiedIndex, under lost replies, requests     *)
(* that arrive late and a state that vanishes.  Twin of model/register.py  *)
(* and model/register_system.py: actions and operators bear their names,   *)
(* and the state graphs are compared, edge by edge.                        *)
(***************************************************************************)
EXTENDS Integers, Sequences, FiniteSets

CONSTANTS
    N,                  \* number of clients
    Rules,              \* the switches of model/register.py that are on
    LateCreates,        \* the state may vanish while a delayed creation is under way
    Sets, Gets,         \* how many calls of each kind a run may contain
    LostReplies, Delays, Vanishings, GiveUps
                        \* how many of each fault

VARIABLES
    store,              \* etcd: the state, its modifiedIndex (0: there is none), etcd's index
    effects,            \* the writes that were carried out: <<index, value, index of what it replaced>>
    c,                  \* the clients, by slot
    flying,             \* requests that are still under way: <<number, what, given, value>>
    left                \* how many of each call and fault may still happen

vars == <<store, effects, c, flying, left>>

ReadBack == "read_back" \in Rules
SettleFirst == "settle_first" \in Rules
StrictTokens == "strict_tokens" \in Rules
VanishedIsAbsent == "vanished_is_absent" \in Rules

Slots == 0 .. (N - 1)
None == <<>>            \* no value
NoToken == -1           \* 0 stands for every token that is no index

\* A value names its author, the call, and the token that came with it.
Given(value) == value[3]

-----------------------------------------------------------------------------
(* What etcd makes of a write, whose kind is the pc of its sender *)

Fits(what, given) == IF what = "create" THEN store.modified = 0 ELSE store.modified = given /\ given > 0

Absent == store.modified = 0

Written(value) == [value |-> value, modified |-> store.index + 1, index |-> store.index + 1]

Carried(what, given, value) ==
    IF Fits(what, given)
    THEN /\ store' = Written(value)
         /\ effects' = Append(effects, <<store.index + 1, value, store.modified>>)
    ELSE UNCHANGED <<store, effects>>

Found(value) == \E k \in DOMAIN effects : effects[k][2] = value

FoundAt(value) ==
    LET k == CHOOSE k \in DOMAIN effects :
                 effects[k][2] = value /\ \A m \in DOMAIN effects : effects[m][2] = value => k <= m
    IN  effects[k][1]

-----------------------------------------------------------------------------
(* What a client decides (model/register.py) *)

Fresh == [pc |-> "idle", token |-> NoToken, value |-> None, given |-> NoToken,
          unsure |-> FALSE, result |-> ""]

Ended(x, result, token) ==
    [x EXCEPT !.pc = "idle", !.token = token, !.unsure = FALSE, !.result = result]

At(x, pc) == [x EXCEPT !.pc = pc]

Begun(x, value, given) ==
    [Fresh EXCEPT !.token = x.token, !.value = value, !.given = given,
        !.pc = IF given > 0 THEN "swap"
               ELSE IF given = 0 /\ StrictTokens THEN "current"
               ELSE IF SettleFirst THEN "look" ELSE "create"]

Lost(x) == [x EXCEPT !.unsure = TRUE, !.pc = IF @ = "create" /\ SettleFirst THEN "settle" ELSE @]

Refused(x) ==
    IF x.pc = "swap" /\ Absent /\ ~VanishedIsAbsent THEN Ended(x, "error", x.token)
    ELSE At(x, IF x.unsure /\ ReadBack THEN "find" ELSE "current")

OnWrite(x) == IF Fits(x.pc, x.given) THEN Ended(x, "written", store.index + 1) ELSE Refused(x)

OnFind(x, otherwise) ==
    IF Found(x.value) THEN Ended(x, "found", FoundAt(x.value)) ELSE At(x, otherwise)

OnRead(x, result) == IF Absent THEN Ended(x, "absent", NoToken) ELSE Ended(x, result, store.modified)

-----------------------------------------------------------------------------
(* Calls and requests *)

Pay(what) == left[what] > 0 /\ left' = [left EXCEPT ![what] = @ - 1]

Become(i, x) == c' = [c EXCEPT ![i] = x]

Quiet == UNCHANGED <<store, effects, flying>>

StartGet(i) ==
    /\ c[i].pc = "idle"
    /\ Pay("gets")
    /\ Become(i, [Fresh EXCEPT !.pc = "get", !.token = c[i].token])
    /\ Quiet

StartSet(i) ==
    /\ c[i].pc = "idle"
    /\ Pay("sets")
    /\ \E given \in {NoToken, 0, c[i].token} : Become(i, Begun(c[i], <<i, left.sets, given>>, given))
    /\ Quiet

Get(i) == c[i].pc = "get" /\ Become(i, OnRead(c[i], "read")) /\ Quiet /\ UNCHANGED left

Look(i) ==
    /\ c[i].pc = "look"
    /\ Become(i, At(c[i], IF Absent THEN "create" ELSE "current"))
    /\ Quiet /\ UNCHANGED left

Write(i) == Carried(c[i].pc, c[i].given, c[i].value) /\ UNCHANGED flying

Create(i) == c[i].pc = "create" /\ Write(i) /\ Become(i, OnWrite(c[i])) /\ UNCHANGED left

Swap(i) == c[i].pc = "swap" /\ Write(i) /\ Become(i, OnWrite(c[i])) /\ UNCHANGED left

Settle(i) == c[i].pc = "settle" /\ Become(i, OnFind(c[i], "create")) /\ Quiet /\ UNCHANGED left

Find(i) == c[i].pc = "find" /\ Become(i, OnFind(c[i], "current")) /\ Quiet /\ UNCHANGED left

Current(i) == c[i].pc = "current" /\ Become(i, OnRead(c[i], "refused")) /\ Quiet /\ UNCHANGED left

-----------------------------------------------------------------------------
(* Faults *)

Writing(i) == c[i].pc \in {"create", "swap"}

LoseReply(i) == Writing(i) /\ Pay("lost_replies") /\ Write(i) /\ Become(i, Lost(c[i]))

Delay(i) ==
    /\ Writing(i)
    /\ Pay("delays")
    /\ flying' = flying \cup {<<left.delays, c[i].pc, c[i].given, c[i].value>>}
    /\ Become(i, Lost(c[i]))
    /\ UNCHANGED <<store, effects>>

GiveUp(i) ==
    /\ c[i].pc # "idle"
    /\ Pay("give_ups")
    /\ Become(i, Ended(c[i], "unknown", c[i].token))
    /\ Quiet

Arrive ==
    \E late \in flying :
        /\ Carried(late[2], late[3], late[4])
        /\ flying' = flying \ {late}
        /\ UNCHANGED <<c, left>>

Creating ==
    \/ \E late \in flying : late[2] = "create"
    \/ \E i \in Slots : c[i].pc = "create" /\ c[i].unsure

Vanish ==
    /\ ~Absent
    /\ Creating => LateCreates
    /\ Pay("vanishings")
    /\ store' = [value |-> None, modified |-> 0, index |-> store.index + 1]
    /\ UNCHANGED <<effects, c, flying>>

-----------------------------------------------------------------------------
Init ==
    /\ store = [value |-> None, modified |-> 0, index |-> 0]
    /\ effects = <<>>
    /\ c = [i \in Slots |-> Fresh]
    /\ flying = {}
    /\ left = [sets |-> Sets, gets |-> Gets, lost_replies |-> LostReplies, delays |-> Delays,
               vanishings |-> Vanishings, give_ups |-> GiveUps]

Next ==
    \/ \E i \in Slots : StartGet(i)
    \/ \E i \in Slots : StartSet(i)
    \/ \E i \in Slots : Get(i)
    \/ \E i \in Slots : Look(i)
    \/ \E i \in Slots : Create(i)
    \/ \E i \in Slots : Swap(i)
    \/ \E i \in Slots : Settle(i)
    \/ \E i \in Slots : Find(i)
    \/ \E i \in Slots : Current(i)
    \/ \E i \in Slots : LoseReply(i)
    \/ \E i \in Slots : Delay(i)
    \/ \E i \in Slots : GiveUp(i)
    \/ Arrive
    \/ Vanish

Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------
(* What must hold (spec/register.py) *)

Values == {effects[k][2] : k \in DOMAIN effects}

TypeOK ==
    /\ \A k \in DOMAIN effects : \A m \in DOMAIN effects : k < m => effects[k][1] < effects[m][1]
    /\ \A i \in Slots :
        /\ c[i].pc \in {"idle", "get", "look", "create", "swap", "settle", "find", "current"}
        /\ c[i].pc = "idle" => c[i].result \in
            {"", "written", "found", "refused", "absent", "error", "unknown", "read"}

NoLostUpdate ==
    /\ Cardinality(Values) = Len(effects)
    /\ \A k \in DOMAIN effects :
        effects[k][3] = IF Given(effects[k][2]) = NoToken THEN 0 ELSE Given(effects[k][2])

TokenNeverCreates ==
    \A k \in DOMAIN effects : effects[k][3] # 0 \/ Given(effects[k][2]) = NoToken

OwnWriteIsSuccess ==
    \A i \in Slots :
        c[i].value # None /\ c[i].result \notin {"", "unknown"} =>
            (c[i].value \in Values <=> c[i].result \in {"written", "found"})

VanishedIsTold == \A i \in Slots : c[i].result # "error"

-----------------------------------------------------------------------------
(* What must be violated: situations that the above is about *)

NeverStale == \A i \in Slots : ~(c[i].result = "refused" /\ c[i].given > 0)

NeverVanished == \A i \in Slots : ~(c[i].result = "absent" /\ c[i].given > 0)

NeverFound == \A i \in Slots : c[i].result # "found"

NeverLate == \A i \in Slots : ~(c[i].result = "unknown" /\ c[i].value \in Values)
=============================================================================
