//! Tests of the script language itself: scripts that must fail, and their messages.

use crate::run;

pub struct Case {
    pub name: &'static str,
    script: &'static str,
    /// The line and a part of the message; `None` for a script that must pass.
    fails: Option<(usize, &'static str)>,
}

/// Checks the runner, because a runner that cannot fail would hide every fault of the stack.
pub fn check(case: &Case) -> Result<(), String> {
    match (run::run(case.script, crate::translate::Wire::default()), case.fails) {
        (Ok(()), None) => Ok(()),
        (Ok(()), Some((line, why))) => Err(format!("it passes; line {line} should say: {why}")),
        (Err((f, _)), None) => Err(format!("line {}: {}", f.line, f.text)),
        (Err((f, _)), Some((line, why))) if f.line == line && f.text.contains(why) => Ok(()),
        (Err((f, _)), Some((line, why))) => {
            Err(format!("line {} says: {}\nline {line} should say: {why}", f.line, f.text))
        }
    }
}

const fn fails(name: &'static str, script: &'static str, line: usize, why: &'static str) -> Case {
    Case { name, script, fails: Some((line, why)) }
}

pub const CASES: &[Case] = &[
    Case { name: "empty", script: "# nothing\n\n", fails: None },
    fails("unknown_command", "frobnicate", 1, "`frobnicate` is no command"),
    fails("unknown_setting", "config colour=blue", 1, "colour=blue is no setting"),
    fails("bad_setting", "config mtu=9\nlisten", 1, "MTU 9"),
    fails("late_setting", "listen\nconfig sack=off", 2, "come before everything else"),
    fails("unknown_flag", "< X 0", 1, "letters of SFRPAUEC"),
    fails("unknown_word", "\n\n< S 0 colour 7", 3, "`colour` is not known"),
    fails("no_ack", "< SA 0", 1, "A needs `ack N`"),
    fails("ack_without_a", "< S 0 ack 1", 1, "needs an A"),
    fails("bad_time", "+soon < S 0", 1, "is no time"),
    fails("span_for_command", "+1..2 listen", 1, "packets that are expected"),
    fails("too_many_options", "< S 0 sack 0:1 1:2 2:3 3:4 ts mss 1460", 1, "room for 40"),
    fails("nothing_sent", "listen\n> SA 0 ack 1 ...", 2, "nothing was sent"),
    fails("not_expected", "listen\n< S 0 mss 1460\n+1", 3, "no line expects"),
    fails("not_expected_at_the_end", "listen\n< S 0 mss 1460", 2, "no line expects"),
    fails("wrong_flags", "listen\n< S 0 mss 1460\n> A 0 ack 1 ...", 3, "control bits: expected A, got SA"),
    fails("wrong_ack", "listen\n< S 0 mss 1460\n> SA 0 ack 2 ...", 3, "ack: expected 2, got 1"),
    fails(
        "extra_option",
        "listen\n< S 0 mss 1460\n> SA 0 ack 1",
        3,
        "an option that the line does not have: Mss",
    ),
    fails("missing_option", "listen\n< S 0 mss 1460\n> SA 0 ack 1 mss 1460 sackok", 3, "SackOk is not there"),
    fails("wrong_window", "open passive mss 1460\n< A 1+5 ack 1\n> A 1 ack 6 win 5", 3, "window: expected 5"),
    fails("wrong_ecn", "open passive mss 1460\n< A 1+5 ack 1\n> A 1 ack 6 ect0", 3, "ECN field"),
    fails(
        "wrong_length",
        "open passive mss 1460\nsend 100\n> A 1+99 ack 1",
        3,
        "octets of data: expected 99",
    ),
    fails(
        "too_early",
        "open passive mss 1460\nsend 10\n> A 1+10 ack 1\n+0.3 > A 1+10 ack 1",
        4,
        "sent too early",
    ),
    fails(
        "too_late",
        "open passive mss 1460\nsend 10\n> A 1+10 ack 1\n+0.1 > A 1+10 ack 1",
        4,
        "nothing was sent",
    ),
    fails(
        "not_quiet",
        "open passive mss 1460\nsend 10\n> A 1+10 ack 1\n+0.3",
        4,
        "no line expects before 0.3",
    ),
    fails("ended", "open passive mss 1460\n< R 1\n+0.1", 3, "say `closed reset`"),
    fails("wrong_end", "open passive mss 1460\n< R 1\nclosed graceful", 3, "with: reset"),
    fails("not_ended", "open passive mss 1460\nclosed reset", 2, "has not ended"),
    fails(
        "wrong_state",
        "open passive mss 1460\ncheck state=close-wait",
        2,
        "state is established, not = close-wait",
    ),
    fails("unknown_field", "open passive mss 1460\ncheck colour=blue", 2, "`colour` is no field"),
    fails("wrong_count", "open passive mss 1460\ncheck passive_opens>1", 2, "passive_opens is 1, not > 1"),
    fails(
        "wrong_data",
        "open passive mss 1460\n< A 1+5 ack 1 fill 9\n> A 1 ack 6\ncheck received=5",
        4,
        "is wrong",
    ),
    fails(
        "wrong_data_held",
        "open passive mss 1460\n< A 1+5 ack 1 fill 9\n> A 1 ack 6\nholds 1+5 fill 8",
        4,
        "octet 1 is 0x09, not 0x08",
    ),
    fails("other_flow", "listen\n@b < S 0 mss 1460\n> SA 0 ack 1 ...", 3, "another flow"),
    Case {
        name: "two_flows",
        script: "listen\n@b < S 0 mss 1460\n@b > SA 0 ack 1 ...\n< S 0 mss 536\n> SA 0 ack 1 ...",
        fails: None,
    },
    Case {
        name: "prescribed_isn",
        script: "config our_isn=0xfffffff0 peer_isn=0xffffff00\nopen active mss 1460\nsend 100\n> A 1+100 ack 1\n\
                 < A 1+1000 ack 101\n> A 101 ack 1001\ncheck received=1000 acked=100",
        fails: None,
    },
];
