/* One internal transfer, two workers, an operator, and everything that can go wrong between them.
 *
 * A transfer is a row with a state and a version. (transfer, version) is the key of a question: the
 * system that is asked stores its answer under that key, a refusal too, and gives it for ever. The
 * answer moves the row by compare-and-set on the version. Model checked with Spin: see README.md.
 *
 * Faults are not counted but allowed: until `healed`, any of them may happen any number of times. A
 * request that has once been sent may arrive again at any later moment, and goes on to do so after
 * the end. Each #ifdef plants a bug that the claims must catch; NEVER_SEEN denies that a state can
 * be reached, which must be refuted as well.
 */

mtype = { UNBORN, SOURCE_PENDING, TARGET_PENDING, COMPENSATING, COMMITTED, FAILED, ROLLED_BACK };
mtype = { NOTHING, DONE, REJECTED, UNKNOWN };

/* The questions. The version of the row is the key of the question that it asks. */
#define DEBIT  0
#define CREDIT 1
#define REFUND 2

#define NOBODY 0

/* The row, as the store holds it. */
mtype state = UNBORN;
byte version = 0;
byte lease = NOBODY;

/* What the two systems hold: the answer under each key, and whether the debit was undone. */
mtype stored[3] = NOTHING;
bool undone = false;

/* True effects, which no part of the model decides upon: only the claims look at them. */
byte debited = 0;
byte credited = 0;
byte refunded = 0;

/* What is still under way somewhere, and may arrive at any time, any number of times. */
bool sent[3] = false;
bool voiding[2] = false;

/* A compare-and-set whose sender has given up, and which may still land. */
bool late = false;
byte late_asked = 0;
mtype late_answer = NOTHING;

/* The world: the target may be closed and the source too poor, now and not a moment later. */
bool closed = false;
bool poor = false;
bool healed = false;

/* Which system lives in our own database: it answers in the transaction that records. */
bool source_local = false;
bool target_local = false;

#define ENDED    (state == COMMITTED || state == FAILED || state == ROLLED_BACK)
#define RESTING  (state == SOURCE_PENDING || state == TARGET_PENDING || state == COMPENSATING)
#define EFFECTS  (4 * debited + 2 * credited + refunded)

#ifdef KEY_WITHOUT_VERSION
#define KEY(question) (question == REFUND -> DEBIT : question)
#else
#define KEY(question) (question)
#endif

/* The effects that each state allows: debited, credited, refunded. */
inline audit() {
    assert(debited <= 1 && credited <= 1 && refunded <= 1);
    assert(debited >= credited + refunded);
    assert(state != UNBORN || EFFECTS == 0);
    assert(state != SOURCE_PENDING || EFFECTS == 0 || EFFECTS == 4);
    assert(state != TARGET_PENDING || EFFECTS == 4 || EFFECTS == 6);
    assert(state != COMPENSATING || EFFECTS == 4 || EFFECTS == 5);
    assert(state != COMMITTED || EFFECTS == 6);
    assert(state != FAILED || EFFECTS == 0);
    assert(state != ROLLED_BACK || EFFECTS == 5)
}

inline refuse(question, said) {
    said = REJECTED;
#ifndef REFUSAL_NOT_STORED
    stored[KEY(question)] = REJECTED
#endif
}

/* A system is asked: atomic, because it is one transaction, or one record of the core's log. */
inline execute(question, said) {
    if
    :: stored[KEY(question)] != NOTHING -> said = stored[KEY(question)]
    :: else ->
        if
        :: question == DEBIT && poor -> refuse(question, said)
        :: question == DEBIT && !poor -> debited++; stored[DEBIT] = DONE; said = DONE
        :: question == CREDIT && closed -> refuse(question, said)
        :: question == CREDIT && !closed -> credited++; stored[CREDIT] = DONE; said = DONE
        :: question == REFUND ->
            /* Our history says that the debit was done: a system that knows better is a HALT. */
            assert(stored[DEBIT] == DONE);
            if
            :: undone
            :: else -> undone = true; refunded++
            fi;
            stored[REFUND] = DONE;
            said = DONE
        fi
    fi;
    audit()
}

/* A person's «no» is asked of the system first: what it had decided wins, else a tombstone. */
inline bury(question, said) {
    if
    :: stored[question] != NOTHING -> said = stored[question]
    :: else ->
        said = REJECTED;
#ifndef NO_TOMBSTONE
        stored[question] = REJECTED
#endif
    fi
}

/* The flow's table: where Done and Rejected lead. There is no column for Unknown. */
inline move(question, said) {
    assert(!ENDED); /* Terminal is terminal. */
    if
    :: question == DEBIT && said == DONE -> state = TARGET_PENDING
    :: question == DEBIT && said == REJECTED -> state = FAILED
    :: question == CREDIT && said == DONE -> state = COMMITTED
    :: question == CREDIT && said == REJECTED -> state = COMPENSATING
    :: question == REFUND && said == DONE -> state = ROLLED_BACK
    fi;
    version = question + 1;
#ifdef NEVER_SEEN
    assert(state != NEVER_SEEN);
#endif
    audit()
}

/* As long as the next system is a local one, it answers in this very transaction. */
inline settle(said) {
    do
    :: state == SOURCE_PENDING && source_local -> execute(DEBIT, said); move(DEBIT, said)
    :: state == TARGET_PENDING && target_local -> execute(CREDIT, said); move(CREDIT, said)
    :: state == COMPENSATING && source_local -> execute(REFUND, said); move(REFUND, said)
    :: else -> break
    od
}

#ifdef NO_CAS
#define FRESH(asked) (RESTING || ENDED)
#else
#define FRESH(asked) (version == asked)
#endif

inline record(asked, said) {
    if
    :: FRESH(asked) ->
#ifdef REFUND_ON_TIMEOUT
        if
        :: said == UNKNOWN && asked == CREDIT -> said = REJECTED
        :: else
        fi;
#endif
        if
        :: said == UNKNOWN
        :: else -> move(asked, said); settle(said)
        fi;
        lease = NOBODY
    :: else
    fi;
    said = NOTHING
}

/* The client asks with one name until there is a row; a start that dies leaves nothing behind. */
active proctype Client() {
    mtype said = NOTHING;
    atomic {
        if
        :: source_local = true
        :: target_local = true
        :: true
        fi
    }
#ifdef CALL_BEFORE_PERSIST
    d_step { execute(DEBIT, said); said = NOTHING }
#endif
    d_step { state = SOURCE_PENDING; settle(said); said = NOTHING }
}

/* Claim what is due, ask, record. A crash forgets all, but leaves the lease and the request. */
active [2] proctype Worker() {
    byte asked = 0;
    mtype said = NOTHING;
end_claim:
    atomic { RESTING && lease == NOBODY -> lease = _pid; asked = version }
    /* Persist before you call: the row says what is asked before anything leaves. */
    sent[asked] = true;
    if
    :: d_step { true -> execute(asked, said) }
    :: d_step { !healed -> said = UNKNOWN }
    fi;
    if
    :: true
    :: d_step { !healed -> said = UNKNOWN } /* The reply is lost, or comes too late. */
    :: !healed -> goto crash
    fi;
    if
    :: d_step { true -> record(asked, said) }
    :: d_step { !healed && !late && said != UNKNOWN ->
        late = true; late_asked = asked; late_answer = said }
    :: !healed -> goto crash
    fi;
crash:
    atomic { asked = 0; said = NOTHING };
    goto end_claim
}

/* Somebody resolves a question that is stuck to «no», once, whether or not it is stuck. */
active proctype Operator() {
    byte asked = 0;
    mtype said = NOTHING;
end_wait:
    d_step {
        (state == SOURCE_PENDING || state == TARGET_PENDING) && !healed ->
        asked = version; voiding[asked] = true
    }
    if
    :: d_step { true -> bury(asked, said) }
    :: !healed -> goto over
    fi;
    d_step { record(asked, said) }
over:
    atomic { asked = 0; said = NOTHING }
}

/* Late and repeated requests, for ever, whose replies nobody hears. */
active proctype Network() {
    mtype unheard = NOTHING;
end:
    do
    :: d_step { sent[DEBIT] -> execute(DEBIT, unheard); unheard = NOTHING }
    :: d_step { sent[CREDIT] -> execute(CREDIT, unheard); unheard = NOTHING }
    :: d_step { sent[REFUND] -> execute(REFUND, unheard); unheard = NOTHING }
    :: d_step { voiding[DEBIT] -> bury(DEBIT, unheard); unheard = NOTHING }
    :: d_step { voiding[CREDIT] -> bury(CREDIT, unheard); unheard = NOTHING }
    od
}

#ifndef LEASE_FOR_EVER
/* A lease runs out whoever holds it, dead or merely slow: only the compare-and-set is trusted. */
active proctype Clock() {
end:
    do
    :: d_step { lease != NOBODY -> lease = NOBODY }
    od
}
#endif

active proctype Store() {
end:
    do
    :: d_step { late -> record(late_asked, late_answer); late = false; late_asked = 0 }
    od
}

active proctype World() {
end:
    do
    :: d_step { !healed -> closed = !closed }
    :: d_step { !healed -> poor = !poor }
    od
}

active proctype Healing() {
    healed = true
}

/* Every transfer ends, once faults have stopped. */
ltl ends { <> (ENDED) }
