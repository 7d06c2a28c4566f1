------------------------------- MODULE Counter -------------------------------
(* A toy for the tests of the tools: a counter that is moved by two processes. *)
EXTENDS Integers, Sequences, TLC

CONSTANTS Max, Wraps, Name

VARIABLES
  count,  \* the counter
  last    \* who moved it last, with a text that needs escapes

vars == <<count, last>>

Init == count = 0 /\ last = [by |-> 0, text |-> "say \"hi\"\\"]

Up(p) == count < Max /\ count' = count + 1 /\ last' = [last EXCEPT !.by = p]

Tick == count < Max /\ count' = count + 1 /\ last' = [last EXCEPT !.by = 1]

Wrap == Wraps /\ count = Max /\ count' = 0 /\ UNCHANGED last

Idle(k) == count = 2 /\ UNCHANGED vars  \* the same transition once per k

Never == count > Max /\ UNCHANGED vars

Next == (\E p \in {1, 2} : Up(p)) \/ Tick \/ Wrap \/ (\E k \in {1, 2} : Idle(k)) \/ Never

Spec == Init /\ [][Next]_vars

FairSpec == Spec /\ WF_vars(Next)

AssertingSpec == Init /\ [][Next /\ (count < 2 \/ Assert(FALSE, "the counter reached two"))]_vars

NobodySpec == (Init /\ count = 1) /\ [][Next]_vars

WarningSpec == Init /\ [][Next \/ (count = 1 /\ count' = 1 /\ last' = [last EXCEPT !.nobody = 1])]_vars

EndlessSpec == Init /\ [][count' = count + 1 /\ last' = last]_vars

InRange == count \in 0 .. Max
NamedRight == Name = "toy"
BelowTwo == count < 2
StartsAtOne == count = 1 \/ last.by > 0
NeverDown == [][count' >= count]_vars
ReachesMax == <>(count = Max)
StaysAtMax == <>[](count = Max)
Small == count < 2
=============================================================================
