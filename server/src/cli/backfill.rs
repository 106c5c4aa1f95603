//! `job backfill`: past instants of a job, run by request.

use std::io::IsTerminal;

use hyper::header::HeaderName;
use punctual::control::{BackfillObject, BackfillSlot, SlotHistory, SlotOutcome};

use super::args::{BackfillArgs, Common};
use super::check::count;
use super::failure::Outcome;
use super::job::{confirm, path};
use crate::client::Client;
use crate::files::{hex, random};
use crate::output::{Output, View};

pub(super) async fn backfill(
    common: &Common,
    client: &mut Client,
    output: &Output,
    args: BackfillArgs,
) -> Outcome {
    let key = match args.idempotency_key {
        Some(key) => key,
        None => hex(&random::<16>()?),
    };
    let path = path(&args.job, "/backfill");
    let body = |dry_run: bool| {
        serde_json::json!({
            "from": args.from, "to": args.to, "limit": args.limit, "again": args.again,
            "dry_run": dry_run,
        })
    };
    let headers = || vec![(HeaderName::from_static("idempotency-key"), key.as_str())];
    // A script knows what it does.
    if !args.dry_run && !common.yes && std::io::stdin().is_terminal() {
        let plan: BackfillObject = client.post(&path, &body(true), headers()).await?;
        let runs = of(&plan, SlotOutcome::Create);
        let left = of(&plan, SlotOutcome::LeftOut);
        let left = match left {
            0 => String::new(),
            left => format!(" ({left} have fired already and are left out)"),
        };
        let runs = count(runs, "run");
        confirm(
            &format!("Make {runs} of {}{left}?", args.job),
            "nothing was run",
        )?;
    }
    let done: BackfillObject = client.post(&path, &body(args.dry_run), headers()).await?;
    print(output, &done)?;
    if !output.is_data() {
        let made = of(&done, SlotOutcome::Created);
        let parts = [
            (of(&done, SlotOutcome::Create), "would be run"),
            (made, "made"),
            (of(&done, SlotOutcome::Exists), "made before"),
            (of(&done, SlotOutcome::LeftOut), "left out: they have fired"),
        ];
        let parts: Vec<String> = parts
            .iter()
            .filter(|(number, _)| *number > 0)
            .map(|(number, word)| format!("{number} {word}"))
            .collect();
        output.note(&match parts.is_empty() {
            true => "no instant of the job lies in this range".into(),
            false => parts.join(", "),
        });
    }
    Ok(())
}

fn of(object: &BackfillObject, outcome: SlotOutcome) -> usize {
    let slots = object.slots.iter();
    slots.filter(|slot| slot.outcome == outcome).count()
}

fn print(output: &Output, object: &BackfillObject) -> Outcome {
    let clock = &output.clock;
    let view = View {
        columns: &[
            ("INSTANT", false),
            ("RECORDED", false),
            ("BACKFILL", false),
            ("RUN", false),
        ],
        row: &|slot: &BackfillSlot| {
            let earlier = slot.earlier.as_deref().unwrap_or_default();
            let recorded = match slot.history {
                SlotHistory::Fired => format!("fired: {earlier}"),
                SlotHistory::Skipped => format!("skipped: {earlier}"),
                SlotHistory::None => "none".into(),
            };
            let (what, run) = match slot.outcome {
                SlotOutcome::Create => ("would run", slot.run_id.as_str()),
                SlotOutcome::Created => ("made", slot.run_id.as_str()),
                SlotOutcome::Exists => ("made before", slot.run_id.as_str()),
                SlotOutcome::LeftOut => ("left out", "-"),
            };
            vec![
                clock.moment(Some(&slot.at)),
                recorded,
                what.into(),
                run.into(),
            ]
        },
        name: &|slot| slot.run_id.clone(),
    };
    output.list(&object.slots, &view)
}
