//! Progress on standard error: bars on a terminal (run, iteration, parts in flight), plain lines
//! elsewhere, nothing in quiet mode.
//!
//! Bars never wrap: they are cut at the width of the terminal. Lines are few: each finished part or
//! iteration is shown once, and a long part prints a line only after a period of silence.

use crate::text;
use agentgym_jobs::pipeline::PartId;
use agentgym_text::visible;
use agentgym_worker::{Event, Warned};
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::io::IsTerminal as _;
use std::time::{Duration, Instant};

/// Most part bars at once; further parts have none.
const PART_BARS_MAX: usize = 8;
/// Without a terminal, a running part prints its progress if no line has been printed for this
/// long.
const SILENCE_MAX: Duration = Duration::from_secs(20);
/// Time after which the same problem is shown again.
const TROUBLE_AGAIN: Duration = Duration::from_secs(60);
/// Width of lines if there is no terminal.
const LINE_WIDTH: usize = 100;

/// Where progress goes.
pub(crate) struct Display {
    form: Form,
    /// When each reason for waiting was last shown.
    waiting: BTreeMap<String, Instant>,
    /// The last failure; it is shown in full only once.
    failure: String,
    /// When a line was last printed.
    spoke: Cell<Instant>,
    parts: BTreeMap<PartId, Part>,
    run: Run,
    warned: Warned,
}

enum Form {
    Quiet,
    Lines,
    Bars(Box<Bars>),
}

/// A part in flight.
struct Part {
    /// Time and position of its first report: a part may resume from a journal.
    first: Option<(Instant, u64)>,
    done: u64,
    total: u64,
    note: String,
    figures: Vec<(&'static str, f64)>,
    bar: Option<ProgressBar>,
}

/// The run as a whole.
#[derive(Default)]
struct Run {
    committed: u64,
    total: u64,
    /// Seconds that were left, and when that was said.
    left: Option<(Instant, f64)>,
}

struct Bars {
    all: MultiProgress,
    run: ProgressBar,
    iteration: ProgressBar,
}

impl Display {
    /// Bars if standard error is a terminal.
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
            waiting: BTreeMap::new(),
            failure: String::new(),
            spoke: Cell::new(Instant::now()),
            parts: BTreeMap::new(),
            run: Run::default(),
            warned: Warned::default(),
        }
    }

    /// Width of a line in columns.
    pub(crate) fn width(&self) -> usize {
        match &self.form {
            Form::Bars(_) => console::Term::stderr()
                .size_checked()
                .map_or(LINE_WIDTH, |(_, columns)| usize::from(columns)),
            _ => LINE_WIDTH,
        }
    }

    /// Prints a permanent line.
    pub(crate) fn line(&self, said: &str) {
        self.spoke.set(Instant::now());
        match &self.form {
            Form::Quiet => {}
            Form::Lines => text::tell(said),
            Form::Bars(bars) => bars.all.suspend(|| text::tell(said)),
        }
    }

    /// A problem: shown even in quiet mode.
    pub(crate) fn problem(&self, said: &str) {
        match &self.form {
            Form::Quiet => text::tell(said),
            _ => self.line(said),
        }
    }

    /// Committed parts, of the run and of the first iteration in flight, and the seconds left.
    pub(crate) fn progress(
        &mut self,
        run: (u64, u64),
        iteration: (u32, u64, u64),
        rate: &str,
        left_s: Option<f64>,
    ) {
        (self.run.committed, self.run.total) = run;
        self.run.left = left_s.map(|left_s| (Instant::now(), left_s));
        if let Form::Bars(bars) = &self.form {
            bars.iteration.set_length(iteration.2);
            bars.iteration.set_position(iteration.1);
            bars.iteration
                .set_prefix(format!("iteration {}", iteration.0));
            let mut words = vec![format!("{} of {} parts", iteration.1, iteration.2)];
            words.extend((!rate.is_empty()).then(|| rate.to_owned()));
            bars.iteration
                .set_message(visible(&words.join("  ")).into_owned());
        }
        self.draw_run();
    }

    /// Shows an event of a worker of this process.
    pub(crate) fn event(&mut self, event: &Event) {
        match event {
            Event::Started { part, .. } => {
                let bar = self.bar(*part);
                self.parts.insert(*part, Part::new(bar));
            }
            Event::Progress {
                part,
                done,
                total,
                note,
                figures,
            } => {
                if let Some(known) = self.parts.get_mut(part) {
                    known.first.get_or_insert((Instant::now(), *done));
                    (known.done, known.total) = (*done, *total);
                    known.note.clone_from(note);
                    known.figures.clone_from(figures);
                    known.draw();
                }
                self.draw_run();
                self.speak(*part);
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
                self.failed(*part, message, *attempts_left);
            }
            Event::Waiting { message } => {
                let again = |told: &Instant| told.elapsed() >= TROUBLE_AGAIN;
                if self.waiting.get(message).is_none_or(again) {
                    self.waiting.insert(message.clone(), Instant::now());
                    self.line(&format!("waiting: {message}"));
                }
            }
            Event::Warned(warning) => {
                if self.warned.is_new(warning) {
                    self.line(&format!("warning: {warning}"));
                }
            }
            Event::RunFinished { .. } | Event::RunStopped { .. } => {}
        }
    }

    fn failed(&mut self, part: PartId, message: &str, attempts_left: u32) {
        let left = match attempts_left {
            // The end of the run reports this.
            0 => return,
            1 => "1 attempt is left".to_owned(),
            n => format!("{n} attempts are left"),
        };
        if message == self.failure {
            self.problem(&format!("{part} failed for the same reason, {left}"));
        } else {
            message.clone_into(&mut self.failure);
            self.problem(&format!("{part} failed, {left}: {message}"));
        }
    }

    /// Removes all bars.
    pub(crate) fn close(&mut self) {
        for (_, part) in std::mem::take(&mut self.parts) {
            if let Some(bar) = part.bar {
                bar.finish_and_clear();
            }
        }
        if let Form::Bars(bars) = &mut self.form {
            bars.iteration.finish_and_clear();
            bars.run.finish_and_clear();
        }
    }

    /// Without a terminal: the progress of a long part, if no line was printed recently.
    fn speak(&self, id: PartId) {
        if !matches!(self.form, Form::Lines) || self.spoke.get().elapsed() < SILENCE_MAX {
            return;
        }
        if let Some(part) = self.parts.get(&id) {
            self.line(&format!("{id}  {}", part.words()));
        }
    }

    fn draw_run(&self) {
        let Form::Bars(bars) = &self.form else {
            return;
        };
        bars.run.set_length(self.run.total);
        bars.run.set_position(self.run.committed);
        bars.run.set_message(self.run.words());
    }

    fn bar(&self, part: PartId) -> Option<ProgressBar> {
        let Form::Bars(bars) = &self.form else {
            return None;
        };
        let drawn = self.parts.values().filter(|p| p.bar.is_some()).count();
        if drawn >= PART_BARS_MAX {
            return None;
        }
        // Length one, because a bar of length zero is drawn full.
        let bar = bars.all.add(ProgressBar::new(1));
        bar.set_style(style());
        bar.set_prefix(format!("  {part}"));
        Some(bar)
    }

    fn remove(&mut self, part: &PartId) {
        if let Some(Part { bar: Some(bar), .. }) = self.parts.remove(part)
            && let Form::Bars(bars) = &self.form
        {
            bar.finish_and_clear();
            bars.all.remove(&bar);
        }
    }
}

impl Part {
    fn new(bar: Option<ProgressBar>) -> Self {
        Self {
            first: None,
            done: 0,
            total: 0,
            note: String::new(),
            figures: Vec::new(),
            bar,
        }
    }

    /// Seconds left at the rate so far.
    fn left_s(&self) -> Option<f64> {
        let (at, done) = self.first?;
        let made = self.done.checked_sub(done).filter(|made| *made > 0)?;
        let todo = self.total.checked_sub(self.done).filter(|todo| *todo > 0)?;
        Some(at.elapsed().as_secs_f64() / made as f64 * todo as f64)
    }

    /// `120 of 500 optimizer steps  3 min 20 s left  loss 0.412  4 800 tokens/s`: a narrow terminal
    /// cuts the end.
    fn words(&self) -> String {
        let mut words = vec![format!("{} of {} {}", self.done, self.total, self.note)];
        words.extend(self.left_s().map(left));
        let known = self.figures.iter().filter(|(_, value)| *value > 0.0);
        words.extend(known.map(|(name, value)| {
            if name.ends_with("/s") {
                format!("{} {name}", text::count(value.round().max(0.0) as u64))
            } else {
                format!("{name} {value:.3}")
            }
        }));
        words.join("  ")
    }

    fn draw(&self) {
        if let Some(bar) = &self.bar {
            bar.set_length(self.total);
            bar.set_position(self.done);
            bar.set_message(visible(&self.words()).into_owned());
        }
    }
}

impl Run {
    /// `31 of 250 parts  9 min 18 s left`.
    fn words(&self) -> String {
        let mut words = vec![format!("{} of {} parts", self.committed, self.total)];
        let left_s = self
            .left
            .map(|(told, left_s)| left_s - told.elapsed().as_secs_f64());
        words.extend(left_s.filter(|_| self.committed < self.total).map(left));
        words.join("  ")
    }
}

/// `3 min 20 s left`.
fn left(seconds: f64) -> String {
    format!("{} left", text::seconds(seconds.max(1.0).round()))
}

impl Bars {
    fn new() -> Self {
        const FRAMES_PER_S: u8 = 10;
        const TICK: Duration = Duration::from_millis(250);
        let all = MultiProgress::with_draw_target(ProgressDrawTarget::stderr_with_hz(FRAMES_PER_S));
        let run = all.add(ProgressBar::new(1));
        run.set_style(style());
        run.set_prefix("run");
        run.enable_steady_tick(TICK);
        let iteration = all.add(ProgressBar::new(1));
        iteration.set_style(style());
        Self {
            all,
            run,
            iteration,
        }
    }
}

/// Columns of a bar's name; `  100/critic_update/12` fits.
const NAME_COLUMNS: usize = 22;
/// Columns of the bar itself.
const BAR_COLUMNS: usize = 10;

/// One style for all bars, so that they align; the message takes the rest of the line and is cut
/// there.
fn style() -> ProgressStyle {
    let template = format!("{{prefix:<{NAME_COLUMNS}!}} {{bar:{BAR_COLUMNS}}} {{wide_msg}}");
    ProgressStyle::with_template(&template)
        .expect("the template is a constant and valid")
        .progress_chars("━╸─")
}

#[cfg(test)]
mod tests {
    use super::*;
    use agentgym_jobs::pipeline::Stage;

    fn id() -> PartId {
        PartId {
            iteration: 0,
            stage: Stage::Sft,
            part: 1,
        }
    }

    fn progress(done: u64) -> Event {
        Event::Progress {
            part: id(),
            done,
            total: 500,
            note: "optimizer steps".into(),
            figures: vec![("loss", 0.4125), ("tokens/s", 4800.4)],
        }
    }

    #[test]
    fn a_part_says_how_far_it_is() {
        let mut display = Display::new(true);
        display.event(&Event::Started {
            part: id(),
            attempt: 1,
            worker: "w".into(),
        });
        display.event(&progress(100));
        let words = |display: &Display| display.parts[&id()].words();
        assert_eq!(
            words(&display),
            "100 of 500 optimizer steps  loss 0.412  4 800 tokens/s",
            "nothing is known about the time that is left"
        );
        let hour = Duration::from_secs(3600);
        let part = display.parts.get_mut(&id()).unwrap();
        part.first = Some((Instant::now().checked_sub(hour).unwrap(), 100));
        display.event(&progress(300));
        assert!(
            words(&display).contains("  1 h 00 min left  "),
            "{}",
            words(&display)
        );
        display.event(&Event::Superseded { part: id() });
        assert!(display.parts.is_empty());
    }

    #[test]
    fn the_time_left_is_seen_at_80_columns() {
        let room = 80 - NAME_COLUMNS - BAR_COLUMNS - 2;
        let mut part = Part::new(None);
        (part.done, part.total, part.note) = (480, 500, "optimizer steps".into());
        part.figures = vec![("loss", 0.4125), ("tokens/s", 4800.4)];
        let ago = Instant::now().checked_sub(Duration::from_secs(36_000));
        part.first = Some((ago.unwrap(), 100));
        let words = part.words();
        let seen: String = words.chars().take(room).collect();
        assert!(
            seen.contains(" min left") || seen.contains(" s left"),
            "{words}"
        );
        let run = Run {
            committed: 12_345,
            total: 99_999,
            left: Some((Instant::now(), 359_999.0)),
        };
        let words = run.words();
        assert!(words.ends_with("99 h 59 min left"), "{words}");
        assert!(words.chars().count() <= room, "{words}");
    }

    #[test]
    fn nothing_is_left_of_a_finished_run() {
        let mut run = Run {
            committed: 20,
            total: 50,
            left: Some((Instant::now(), 200.0)),
        };
        assert!(run.words().ends_with("left"), "{}", run.words());
        run.committed = 50;
        assert_eq!(run.words(), "50 of 50 parts");
        run.left = None;
        assert_eq!(run.words(), "50 of 50 parts");
    }
}
