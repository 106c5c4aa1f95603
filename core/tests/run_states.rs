//! The run state machine: its diagram, edge by edge, and what no sequence of events can do.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use proptest::prelude::*;
use punctual::job::run::{
    Ending, FailReason, IllegalTransition, Owner, Phase, RunEvent, RunState, transition,
};

fn owner(name: &str) -> Owner {
    Owner {
        node: name.into(),
        incarnation: "1".into(),
    }
}

fn phases() -> Vec<Phase> {
    let mut phases = vec![Phase::Pending, Phase::Success];
    for name in ["a", "b"] {
        phases.push(Phase::Locked(owner(name)));
        phases.push(Phase::Running(owner(name)));
    }
    phases.extend(FailReason::ALL.map(Phase::Failed));
    phases
}

/// Those of a run in parts.
fn phases_in_parts() -> Vec<Phase> {
    let mut phases = vec![Phase::Whole, Phase::InParts, Phase::Success];
    phases.extend(FailReason::ALL.map(Phase::Failed));
    phases
}

fn events() -> Vec<RunEvent> {
    let mut events = vec![
        RunEvent::Recover,
        RunEvent::Overrun,
        RunEvent::Expand,
        RunEvent::Derive(Ending::Success),
    ];
    events.extend(FailReason::ALL.map(|reason| RunEvent::Derive(Ending::Failed(reason))));
    for name in ["a", "b"] {
        events.push(RunEvent::Claim(owner(name)));
        events.push(RunEvent::Start(owner(name)));
        events.push(RunEvent::Decline(owner(name)));
        events.push(RunEvent::Finish(owner(name), Ending::Success));
        for reason in FailReason::ALL {
            events.push(RunEvent::Finish(owner(name), Ending::Failed(reason)));
        }
    }
    events.extend(FailReason::ALL.map(RunEvent::Abandon));
    events
}

/// The diagram of PROTOCOL section 5, written down once more and by hand.
const EDGES: [(RunState, RunState); 7] = [
    (RunState::Pending, RunState::Locked),
    (RunState::Pending, RunState::Failed),
    (RunState::Locked, RunState::Running),
    (RunState::Locked, RunState::Pending),
    (RunState::Locked, RunState::Failed),
    (RunState::Running, RunState::Success),
    (RunState::Running, RunState::Failed),
];

/// The same of a run in parts: nobody takes it, and what recovers, times out or expires others leaves
/// it alone.
const EDGES_IN_PARTS: [(RunState, RunState); 5] = [
    (RunState::Pending, RunState::Running),
    (RunState::Pending, RunState::Failed),
    (RunState::Running, RunState::Running),
    (RunState::Running, RunState::Success),
    (RunState::Running, RunState::Failed),
];

fn stays_in(phases: &[Phase], edges: &[(RunState, RunState)]) {
    let mut seen = std::collections::BTreeSet::new();
    for phase in phases {
        for event in events() {
            if let Ok(next) = transition(phase, &event) {
                let edge = (phase.state(), next.state());
                assert!(edges.contains(&edge), "{phase:?} --{event:?}--> {next:?}");
                assert!(phases.contains(&next), "{phase:?} --{event:?}--> {next:?}");
                seen.insert(edge);
            }
        }
    }
    assert_eq!(seen, edges.iter().copied().collect());
}

#[test]
fn every_pair_of_phase_and_event_stays_in_the_diagram_and_every_edge_exists() {
    stays_in(&phases(), &EDGES);
    stays_in(&phases_in_parts(), &EDGES_IN_PARTS);
}

#[test]
fn a_run_in_parts_is_divided_derived_or_abandoned_and_nothing_else() {
    for phase in [Phase::Whole, Phase::InParts] {
        for event in events() {
            let expected = match (&phase, &event) {
                (_, RunEvent::Expand) => Some(Phase::InParts),
                (
                    Phase::Whole,
                    RunEvent::Abandon(reason @ (FailReason::Cancelled | FailReason::NoHandler)),
                )
                | (
                    Phase::InParts,
                    RunEvent::Derive(Ending::Failed(
                        reason @ (FailReason::Cancelled | FailReason::Error),
                    )),
                ) => Some(Phase::Failed(*reason)),
                (Phase::InParts, RunEvent::Derive(Ending::Success)) => Some(Phase::Success),
                _ => None,
            };
            assert_eq!(
                transition(&phase, &event).ok(),
                expected,
                "{phase:?} {event:?}"
            );
        }
    }
    let refused = transition(&Phase::Pending, &RunEvent::Expand).unwrap_err();
    assert_eq!(refused.to_string(), "expand is not possible while PENDING");
}

#[test]
fn illegal_edges_say_what_is_wrong() {
    let (a, b) = (owner("a"), owner("b"));
    let cases = [
        (
            Phase::Success,
            RunEvent::Recover,
            "recover on an attempt that ended as SUCCESS",
        ),
        (
            Phase::Pending,
            RunEvent::Start(a.clone()),
            "start is not possible while PENDING",
        ),
        (
            Phase::Locked(a.clone()),
            RunEvent::Start(b.clone()),
            "start by b/1, but the attempt belongs to a/1",
        ),
        (
            Phase::Pending,
            RunEvent::Abandon(FailReason::Panic),
            "abandon cannot end an attempt as panic",
        ),
        (
            Phase::Running(a.clone()),
            RunEvent::Finish(a, Ending::Failed(FailReason::NoHandler)),
            "finish cannot end an attempt as no_handler",
        ),
    ];
    for (phase, event, message) in cases {
        assert_eq!(transition(&phase, &event).unwrap_err().to_string(), message);
    }
}

#[test]
fn reasons_come_only_from_where_they_can() {
    // PENDING -> FAILED { cancelled, expired, no_handler }, LOCKED -> FAILED { cancelled, expired }.
    let reasons = |phase: &Phase| -> Vec<FailReason> {
        FailReason::ALL
            .into_iter()
            .filter(|reason| transition(phase, &RunEvent::Abandon(*reason)).is_ok())
            .collect()
    };
    assert_eq!(
        reasons(&Phase::Pending),
        [
            FailReason::Cancelled,
            FailReason::Expired,
            FailReason::NoHandler
        ]
    );
    assert_eq!(
        reasons(&Phase::Locked(owner("a"))),
        [FailReason::Cancelled, FailReason::Expired]
    );
    assert_eq!(reasons(&Phase::Running(owner("a"))), []);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    /// Terminal states never change, and an attempt that is somebody's is never advanced by
    /// somebody else.
    #[test]
    fn no_sequence_leaves_a_terminal_state_or_serves_two_owners(
        in_parts in any::<bool>(),
        picks in prop::collection::vec(any::<prop::sample::Index>(), 1..60)
    ) {
        let events = events();
        let mut phase = if in_parts { Phase::Whole } else { Phase::Pending };
        for pick in picks {
            let event = pick.get(&events);
            let by = match event {
                RunEvent::Start(by) | RunEvent::Decline(by) | RunEvent::Finish(by, _) => Some(by),
                _ => None,
            };
            match transition(&phase, event) {
                Ok(next) => {
                    prop_assert!(!phase.state().is_terminal());
                    if let (Some(owner), Some(by)) = (phase.owner(), by) {
                        prop_assert_eq!(owner, by);
                    }
                    if let (Some(before), Some(after)) = (phase.owner(), next.owner()) {
                        prop_assert_eq!(before, after);
                    }
                    phase = next;
                }
                Err(IllegalTransition::Terminal { state, .. }) => {
                    prop_assert!(state.is_terminal());
                    prop_assert_eq!(state, phase.state());
                }
                Err(_) => prop_assert!(!phase.state().is_terminal()),
            }
        }
    }
}
