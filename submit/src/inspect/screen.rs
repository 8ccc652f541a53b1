//! Text form of parts, episodes and tokens.

use crate::Result;
use crate::metrics::Row;
use crate::records::{Content, RecordDocument};
use crate::runs::RunView;
use crate::text;
use crate::workers::short_worker;
use agentgym_jobs::episode::{ContextSummary, Episode, Finish, Parse, Sequence};
use agentgym_jobs::pipeline::{PartId, Stage, policy_of};
use agentgym_jobs::records::BatchEpisode;
use agentgym_model::Tokenizer;
use agentgym_record::Stats;
use agentgym_record::filter::Kept;
use agentgym_storage::{AttemptOutcome, AttemptRecord, Manifest};
use serde_json::Value;

/// Longest line shown of an observation or a prompt.
const LINE_MAX: usize = 160;

/// The text of single tokens, if the tokenizer is available.
#[derive(Debug, Default)]
pub(crate) struct Pieces(Option<Tokenizer>);

impl Pieces {
    /// No tokenizer: ids only.
    pub(crate) fn none() -> Self {
        Self(None)
    }

    /// The run's tokenizer. Training never changes it, and the first commit that contains it never
    /// expires.
    pub(crate) async fn of(view: &RunView) -> Result<Self> {
        const FILES: [&str; 2] = ["tokenizer.json", "tokenizer_config.json"];
        let init = PartId {
            iteration: 0,
            stage: Stage::Init,
            part: 0,
        };
        let start = view
            .plan
            .forked_at()
            .map(|last| policy_of(&view.plan, last));
        let commit = match (view.manifest(init).await?, start) {
            (None, Some(start)) => view.committed(start).await?,
            _ => view.committed(init).await?,
        };
        let dir = tempfile::tempdir().map_err(crate::Error::local("a temporary folder"))?;
        for file in FILES {
            let name = format!("policy/{file}");
            if commit.outputs.iter().any(|o| o.name == name) {
                let path = dir.path().join(file);
                let bytes = view.bytes(&commit, &name).await?;
                std::fs::write(&path, bytes).map_err(crate::Error::local(path))?;
            }
        }
        // Without a usable tokenizer the ids are still shown.
        Ok(Self(Tokenizer::load(dir.path()).ok()))
    }

    /// The text that each token adds. A character of several tokens stands with its last one.
    pub(crate) fn texts(&self, ids: &[u32]) -> Vec<String> {
        const TOKENS_MAX: usize = 4;
        let Some(tokenizer) = &self.0 else {
            return vec![String::new(); ids.len()];
        };
        let mut open = Vec::new();
        let mut text = |id: u32| {
            open.push(id);
            let text = tokenizer.decode(&open, false);
            if text.ends_with('\u{fffd}') && open.len() < TOKENS_MAX {
                return String::new();
            }
            open.clear();
            text
        };
        ids.iter().map(|id| text(*id)).collect()
    }

    /// The records with the text of every token beside its id, where there is a tokenizer.
    pub(crate) fn beside(&self, mut records: Vec<RecordDocument>) -> Vec<RecordDocument> {
        if self.0.is_some() {
            for sequence in records.iter_mut().flat_map(RecordDocument::sequences_mut) {
                sequence.pieces = Some(self.texts(&sequence.token_ids));
            }
        }
        records
    }

    fn piece(&self, id: u32) -> String {
        match &self.0 {
            Some(tokenizer) => format!("{:?}", tokenizer.decode(&[id], false)),
            None => String::new(),
        }
    }
}

/// The commit in two lines, and its metrics.
pub(crate) fn head(id: PartId, manifest: &Manifest, row: &Row) -> String {
    let mut out = format!("{id}  attempt {}", manifest.attempt);
    if let Some(work) = &manifest.work {
        out += &format!(" by {}", short_worker(&work.worker));
    }
    if let Some(wall_s) = row.wall_s {
        out += &format!("  {}", text::seconds(wall_s));
    }
    if let Some(set) = &row.set {
        out += &format!("  set {set}");
    }
    out.push('\n');
    for input in &manifest.inputs {
        out += &format!(
            "  input   {} = {}/{}/{}\n",
            input.name, input.iteration, input.stage, input.part
        );
    }
    for output in &manifest.outputs {
        let digest = output.digest.to_string();
        out += &format!(
            "  output  {}  {}  {}\n",
            output.name,
            text::bytes(output.size),
            &digest[..16.min(digest.len())]
        );
    }
    if !row.figures.is_empty() {
        let figures: Vec<String> = row.figures.iter().map(|(k, v)| figure(k, v)).collect();
        out += &format!("  {}\n", figures.join("  "));
    }
    out
}

/// For a part that needed more than one attempt: whose each was, how it ended and, where tokens are
/// sampled, how many and what became of them.
pub(crate) fn attempts(
    id: PartId,
    attempts: &[AttemptRecord],
    manifest: &Manifest,
    row: &Row,
) -> String {
    let twice = row.measured.sampled_twice_tokens;
    let tokens = |of: &Stats| match twice {
        None => String::new(),
        Some(_) => format!(
            ": {} tokens taken up, {} sampled, {} journalled",
            of.taken_up_tokens.unwrap_or_default(),
            of.sampled_tokens.unwrap_or_default(),
            of.journalled_tokens.unwrap_or_default()
        ),
    };
    let mut out = String::new();
    for attempt in attempts.iter().filter(|a| a.number < manifest.attempt) {
        let how = match &attempt.end {
            None => "vanished, no end is on record".to_owned(),
            Some(end) => {
                let outcome = match end.outcome {
                    AttemptOutcome::Committed => "committed",
                    AttemptOutcome::Superseded => "superseded",
                    AttemptOutcome::Failed => "failed",
                    AttemptOutcome::Drained => "drained",
                    AttemptOutcome::Cancelled => "cancelled",
                };
                let measured = Stats::read(id, &end.stats).unwrap_or_default();
                format!("{outcome}{}", tokens(&measured))
            }
        };
        let worker = short_worker(&attempt.start.worker);
        out += &format!("  attempt {}  {worker}  {how}\n", attempt.number);
    }
    let worker = manifest.work.as_ref().map(|work| &*work.worker);
    let worker = worker.map_or_else(String::new, |name| short_worker(name) + "  ");
    out += &format!(
        "  attempt {}  {worker}committed{}",
        manifest.attempt,
        tokens(&row.measured)
    );
    if let Some(twice) = twice {
        out += &format!("; {twice} known to be sampled twice");
    }
    out + "\n"
}

fn figure(name: &str, value: &Value) -> String {
    match value {
        Value::Number(n) if n.is_f64() => {
            let v = n.as_f64().unwrap_or(f64::NAN);
            if v != 0.0 && v.abs() < 1e-3 {
                format!("{name} {v:.2e}")
            } else {
                format!("{name} {v:.4}")
            }
        }
        Value::Array(list) if leaves(value) > 4 => {
            let nested = list.iter().any(Value::is_array);
            let what = if nested { "lists" } else { "values" };
            format!("{name} [{} {what}]", list.len())
        }
        Value::Object(map) if !map.is_empty() => {
            let inner: Vec<String> = map.iter().map(|(k, v)| figure(k, v)).collect();
            format!("{name}: {}", inner.join(", "))
        }
        other => format!("{name} {other}"),
    }
}

fn leaves(value: &Value) -> usize {
    match value {
        Value::Array(list) => list.iter().map(leaves).sum(),
        _ => 1,
    }
}

/// The records of a part; with `brief`, one line each.
pub(crate) fn body(content: &Content, brief: bool, tokens: bool, pieces: &Pieces) -> String {
    let mut out = String::new();
    match content {
        Content::Episodes(list) => {
            for episode in list {
                out += &episode_line(episode);
                if !brief {
                    out += &turns(episode);
                }
                for sequence in episode.sequences.iter().filter(|_| tokens) {
                    out += &token_table(sequence, &[], pieces);
                }
            }
        }
        Content::Kept(list) => {
            for Kept { lineage, episode } in list {
                out += &format!(
                    "{}  from iteration {} rollout {} episode {}\n",
                    episode_line(episode).trim_end(),
                    lineage.iteration,
                    lineage.part,
                    lineage.episode
                );
                if !brief {
                    out += &turns(episode);
                }
                for sequence in episode.sequences.iter().filter(|_| tokens) {
                    out += &token_table(sequence, &[], pieces);
                }
            }
        }
        Content::LogProbs(list) => {
            for scored in list {
                let (episode, row) = (&scored.episode, &scored.streams);
                out += &episode_line(episode);
                for (i, sequence) in episode.sequences.iter().enumerate().filter(|_| tokens) {
                    let mut streams = vec![
                        ("old", widen(&row.old[i])),
                        ("entropy", widen(&row.entropies[i])),
                    ];
                    if let Some(reference) = &row.reference {
                        streams.push(("ref", widen(&reference[i])));
                    }
                    if let Some(values) = &scored.values {
                        streams.push(("value", widen(&values[i])));
                    }
                    out += &token_table(sequence, &streams, pieces);
                }
            }
        }
        Content::Batch(list) => {
            for slot in list {
                out += &batch_line(slot.slot, &slot.episode);
                let sequences = slot.episode.sequences.iter().enumerate();
                for (i, s) in sequences.filter(|_| tokens) {
                    let mut streams = vec![("old", widen(&s.old_log_probs))];
                    if let Some(reference) = &s.ref_log_probs {
                        streams.push(("ref", widen(reference)));
                    }
                    streams.push(("advantage", s.advantages.clone()));
                    if let Some(critic) = slot.targets.as_ref().and_then(|all| all.get(i)) {
                        streams.push(("value", widen(&critic.values)));
                        streams.push(("return", critic.returns.clone()));
                    }
                    out += &token_table(&s.sequence, &streams, pieces);
                }
            }
        }
        Content::Update(minibatches) => {
            for (index, minibatch) in minibatches.iter().enumerate() {
                out += &format!("  step {index}");
                for (name, value) in minibatch.as_object().into_iter().flatten() {
                    out += &format!("  {}", figure(name, value));
                }
                out.push('\n');
            }
        }
        Content::Nothing => {}
    }
    out
}

fn widen(values: &[f32]) -> Vec<f64> {
    values.iter().map(|v| f64::from(*v)).collect()
}

fn episode_line(episode: &Episode) -> String {
    let tokens: usize = episode.sequences.iter().map(|s| s.token_ids.len()).sum();
    let sampled: usize = episode.sequences.iter().map(Sequence::loss_tokens).sum();
    let mut out = format!(
        "{}  group {} sample {}  {}  reward {:.3}  {} turns  {tokens} tokens, {sampled} sampled\n",
        episode.task,
        episode.group,
        episode.sample,
        episode.outcome.name().replace('_', " "),
        episode.reward,
        episode.turns.len()
    );
    if let Some(judged) = episode.judgement() {
        let parts = judged.components.iter();
        let parts: Vec<String> = parts
            .map(|(name, value)| format!("{name} {value}"))
            .collect();
        let said = format!("{}: {}", parts.join(", "), judged.reason);
        let said = said.trim_matches([':', ' ']);
        out += &format!("    judged: {}\n", text::one_line(said, LINE_MAX));
    }
    if let Some(fault) = &episode.fault {
        out += &format!("    fault: {}\n", text::one_line(fault, LINE_MAX));
    }
    out
}

fn batch_line(slot: usize, episode: &BatchEpisode) -> String {
    let sampled: usize = episode
        .sequences
        .iter()
        .map(|s| s.sequence.loss_tokens())
        .sum();
    format!(
        "slot {slot}  {}  group {} sample {}  {}  reward {:.3}  advantage {:+.4}  {sampled} loss tokens\n",
        episode.task,
        episode.group,
        episode.sample,
        episode.outcome.name().replace('_', " "),
        episode.reward,
        episode.advantage
    )
}

fn turns(episode: &Episode) -> String {
    let mut out = indented("prompt", &episode.told());
    let available = episode.available_actions();
    let agent = episode.agent();
    if let Some(agent) = &agent {
        out += &indented("agent", &agent.words());
    }
    let summaries = episode.summaries();
    let answers = if episode.tools().is_empty() {
        "env"
    } else {
        "tool"
    };
    for (index, turn) in episode.turns.iter().enumerate() {
        if let Some(Some(actions)) = available.get(index) {
            let label = format!("{} possible", text::many(actions.len() as u64, "action"));
            out += &indented(&label, &actions.join(" | "));
        }
        let finish = match turn.finish {
            Finish::Eos => "",
            Finish::Length => ", cut by length",
        };
        let parse = match turn.parse {
            Parse::Clean => "",
            Parse::Normalised => ", normalised",
            Parse::Invalid => ", no action found",
        };
        let place = agent.as_ref().and_then(|agent| agent.place(index));
        let place = place.map_or_else(String::new, |place| format!(", {place}"));
        let label = format!(
            "turn {} policy ({} tokens{finish}{parse}{place})",
            index + 1,
            turn.policy.1 - turn.policy.0
        );
        out += &indented(&label, &turn.text);
        if let Some(action) = turn
            .action
            .as_ref()
            .filter(|a| a.trim() != turn.text.trim())
        {
            let action = if action.is_empty() {
                "(nothing)"
            } else {
                action
            };
            out += &indented("sent", action);
        }
        let label = match turn.reward {
            Some(reward) => format!("{answers} (reward {reward})"),
            None => answers.to_owned(),
        };
        out += &indented(&label, &turn.observation);
        let here = |summary: &&ContextSummary| summary.turns as usize == index + 1;
        for summary in summaries.iter().filter(here) {
            let tokens = summary.policy.1 - summary.policy.0;
            out += &indented(&format!("summary ({tokens} tokens)"), &summary.text);
        }
    }
    out
}

/// `label: first line`, further lines below it.
fn indented(label: &str, body: &str) -> String {
    let mut lines = body.lines().filter(|l| !l.trim().is_empty());
    let first = lines.next().unwrap_or_default();
    let mut out = format!("    {label}: {}\n", text::one_line(first, LINE_MAX));
    for line in lines {
        out += &format!("        {}\n", text::one_line(line, LINE_MAX));
    }
    out
}

fn token_table(sequence: &Sequence, streams: &[(&str, Vec<f64>)], pieces: &Pieces) -> String {
    let masses = sequence.log_kept_mass.iter();
    let masses = masses.map(|row| ("kept", row.iter().map(|x| f64::from(*x)).collect()));
    let streams: Vec<(&str, Vec<f64>)> = masses.chain(streams.iter().cloned()).collect();
    let mut head = vec!["text", "position", "id", "loss", "sampled"];
    head.extend(streams.iter().map(|(name, _)| *name));
    let rows: Vec<Vec<String>> = (0..sequence.token_ids.len())
        .map(|t| {
            let trained = sequence.loss_mask[t];
            let number = |v: Option<&f64>| match v {
                Some(v) if trained && !v.is_nan() => format!("{v:.4}"),
                _ => "·".to_owned(),
            };
            let mut row = vec![
                pieces.piece(sequence.token_ids[t]),
                t.to_string(),
                sequence.token_ids[t].to_string(),
                u8::from(trained).to_string(),
                number(Some(&f64::from(sequence.sampled_log_probs[t]))),
            ];
            row.extend(streams.iter().map(|(_, values)| number(values.get(t))));
            row
        })
        .collect();
    text::table(&head, &rows)
}
