//! Progress on standard error: bars on a terminal (run, iteration, parts in
//! flight), plain lines elsewhere, nothing when asked to be quiet.

use agentgym_jobs::pipeline::PartId;
use agentgym_worker::Event;
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::collections::BTreeMap;
use std::io::IsTerminal as _;
use std::time::Duration;

/// Most part bars at once; further parts run without one.
const PART_BARS_MAX: usize = 8;

/// Where progress goes.
pub(crate) struct Display {
    form: Form,
    /// The last waiting message, so that it is not repeated.
    waiting: String,
}

enum Form {
    Quiet,
    Lines,
    Bars(Box<Bars>),
}

struct Bars {
    all: MultiProgress,
    run: ProgressBar,
    iteration: ProgressBar,
    parts: BTreeMap<PartId, ProgressBar>,
}

impl Display {
    /// Bars where standard error is a terminal.
    pub(crate) fn new(quiet: bool) -> Self {
        let form = if quiet {
            Form::Quiet
        } else if std::io::stderr().is_terminal() {
            Form::Bars(Box::new(Bars::new()))
        } else {
            Form::Lines
        };
        Self {
            form,
            waiting: String::new(),
        }
    }

    /// A line that stays.
    pub(crate) fn line(&self, text: &str) {
        match &self.form {
            Form::Quiet => {}
            Form::Lines => eprintln!("{text}"),
            Form::Bars(bars) => bars.all.suspend(|| eprintln!("{text}")),
        }
    }

    /// A problem: shown even when quiet.
    pub(crate) fn problem(&self, text: &str) {
        match &self.form {
            Form::Quiet => eprintln!("{text}"),
            _ => self.line(text),
        }
    }

    /// Parts committed, of the run and of the first iteration in flight.
    pub(crate) fn progress(&self, run: (u64, u64), iteration: (u32, u64, u64), note: &str) {
        if let Form::Bars(bars) = &self.form {
            bars.run.set_length(run.1);
            bars.run.set_position(run.0);
            bars.run.set_message(note.to_owned());
            bars.iteration.set_length(iteration.2);
            bars.iteration.set_position(iteration.1);
            bars.iteration
                .set_prefix(format!("iteration {}", iteration.0));
        }
    }

    /// Something a worker of this process said.
    pub(crate) fn event(&mut self, event: &Event) {
        match event {
            Event::Started { part, .. } => self.bar(*part, |_| {}),
            Event::Progress {
                part,
                done,
                total,
                note,
            } => {
                let (done, total, note) = (*done, *total, note.clone());
                self.bar(*part, |bar| {
                    bar.set_length(total);
                    bar.set_position(done);
                    bar.set_message(note);
                });
            }
            Event::Committed { part, .. } | Event::Superseded { part } => {
                self.remove(part);
                self.waiting.clear();
            }
            Event::Failed {
                part,
                message,
                attempts_left,
            } => {
                self.remove(part);
                self.problem(&format!(
                    "{part} failed, {attempts_left} attempts left: {message}"
                ));
            }
            Event::Waiting { message } if *message != self.waiting => {
                self.waiting.clone_from(message);
                self.line(&format!("waiting: {message}"));
            }
            Event::Waiting { .. } | Event::RunFinished { .. } | Event::RunStopped { .. } => {}
        }
    }

    /// Removes all bars.
    pub(crate) fn close(&mut self) {
        if let Form::Bars(bars) = &mut self.form {
            for (_, bar) in std::mem::take(&mut bars.parts) {
                bar.finish_and_clear();
            }
            bars.iteration.finish_and_clear();
            bars.run.finish_and_clear();
        }
    }

    fn bar(&mut self, part: PartId, change: impl FnOnce(&ProgressBar)) {
        let Form::Bars(bars) = &mut self.form else {
            return;
        };
        if bars.parts.len() >= PART_BARS_MAX && !bars.parts.contains_key(&part) {
            return;
        }
        let all = &bars.all;
        let bar = bars.parts.entry(part).or_insert_with(|| {
            let bar = all.add(ProgressBar::new(0));
            bar.set_style(style("  {prefix:<24} {bar:24} {pos}/{len} {msg} {elapsed}"));
            bar.set_prefix(part.to_string());
            bar
        });
        change(bar);
    }

    fn remove(&mut self, part: &PartId) {
        if let Form::Bars(bars) = &mut self.form
            && let Some(bar) = bars.parts.remove(part)
        {
            bar.finish_and_clear();
            bars.all.remove(&bar);
        }
    }
}

impl Bars {
    fn new() -> Self {
        const FRAMES_PER_S: u8 = 10;
        const TICK: Duration = Duration::from_millis(250);
        let all = MultiProgress::with_draw_target(ProgressDrawTarget::stderr_with_hz(FRAMES_PER_S));
        let run = all.add(ProgressBar::new(0));
        run.set_style(style(
            "{prefix:<26} {bar:24} {pos}/{len} parts, {elapsed} gone, {eta} left  {msg}",
        ));
        run.set_prefix("run");
        run.enable_steady_tick(TICK);
        let iteration = all.add(ProgressBar::new(0));
        iteration.set_style(style("{prefix:<26} {bar:24} {pos}/{len} parts"));
        Self {
            all,
            run,
            iteration,
            parts: BTreeMap::new(),
        }
    }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template)
        .expect("templates are constants and valid")
        .progress_chars("━╸─")
}
