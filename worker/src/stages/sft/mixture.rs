//! Which demonstrations a step trains on: sources are drawn by share, rows of a source by a
//! permutation per pass. Pick k is a function of only the seed, the iteration and k. In an
//! AgentEvol run the kept trajectories are one more source, whose rows are sequences as they were
//! sampled.

use super::held_out::{held_out, split_key};
use crate::demonstrations::{Conversation, Encoded, Line, Shown, parse_file};
use crate::environments::tasks;
use crate::stages::artifacts::read;
use crate::{Error, Result};
use agentgym_envs::builtin;
use agentgym_envs::spec::spec;
use agentgym_jobs::artifact_names;
use agentgym_jobs::config::{OverlongRows, SftSource};
use agentgym_jobs::episode::Episodes;
use agentgym_jobs::plan::Plan;
use agentgym_jobs::random::{Purpose, StreamKey, head, permutation};
use agentgym_model::Policy;
use agentgym_storage::Inputs;
use agentgym_text::without_secrets;

/// The sources of demonstrations, and the position in them.
pub(in crate::stages) struct Mixture {
    pub(super) sources: Vec<Source>,
    pub(super) seed: u64,
    pub(super) iteration: u32,
    pub(super) batch_size: usize,
    /// What happens to a solver's demonstration that is too long.
    pub(super) overlong: OverlongRows,
    /// Picks so far, over all sources.
    pub(super) picks: u64,
    /// Whole passes over all rows, instead of draws by share.
    pub(super) passes: Option<Passes>,
    /// Held-out rows.
    pub(super) validation: Vec<Source>,
}

/// Each pass takes every row once; the last batch of a pass may be smaller.
pub(super) struct Passes {
    pub(super) count: u32,
    pub(super) seed: u64,
    /// The next step, 0-based.
    pub(super) step: u32,
    pub(super) order: Option<(u64, Vec<u32>)>,
}

pub(super) struct Source {
    pub(super) what: String,
    pub(super) content: Content,
    pub(super) len: usize,
    /// Upper end of the source's share of the unit interval.
    pub(super) share_end: f64,
    pub(super) seed: u64,
    /// Picks from this source so far.
    pub(super) picks: u64,
    pub(super) order: Option<(u64, Vec<u32>)>,
}

pub(super) enum Content {
    File(Vec<Conversation>),
    Solver(Shown),
    /// Sampled sequences, whose tokens are never encoded again (I6).
    Sampled(Vec<Encoded>),
}

impl Content {
    /// The task of each row: rows of one task have the same name.
    fn tasks(&self) -> Vec<String> {
        let named = |(row, conversation): (usize, &Conversation)| match &conversation.item_id {
            Some(item) => format!("item {item}"),
            None => format!("row {row}"),
        };
        match self {
            Self::File(rows) => rows.iter().enumerate().map(named).collect(),
            Self::Solver(shown) => shown.ids.iter().map(ToString::to_string).collect(),
            Self::Sampled(rows) => (0..rows.len()).map(|row| row.to_string()).collect(),
        }
    }

    /// The rows whose entry in `keeps` equals `side`.
    fn only(&self, keeps: &[bool], side: bool) -> Self {
        fn those<T: Clone>(rows: &[T], keeps: &[bool], side: bool) -> Vec<T> {
            let rows = rows.iter().zip(keeps).filter(|(_, kept)| **kept == side);
            rows.map(|(row, _)| row.clone()).collect()
        }
        match self {
            Self::File(rows) => Self::File(those(rows, keeps, side)),
            Self::Sampled(rows) => Self::Sampled(those(rows, keeps, side)),
            Self::Solver(shown) => Self::Solver(Shown {
                ids: those(&shown.ids, keeps, side),
                ..shown.clone()
            }),
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::File(rows) => rows.len(),
            Self::Solver(shown) => shown.ids.len(),
            Self::Sampled(rows) => rows.len(),
        }
    }
}

/// The input with the trajectories that an AgentEvol iteration kept.
const KEPT: &str = "kept";

/// The random key that selects the source of pick `k`.
pub(in crate::stages) fn pick_key(seed: u64, iteration: u32, k: u64) -> StreamKey {
    StreamKey {
        seed,
        purpose: Purpose::Sft,
        iteration,
        draw: k,
        sample: 0,
    }
}

/// The random key of a source's order; no pick uses this `sample`.
pub(in crate::stages) fn source_key(seed: u64, iteration: u32, index: usize) -> StreamKey {
    StreamKey {
        sample: u32::MAX,
        ..pick_key(seed, iteration, index as u64)
    }
}

/// The random key of the order of whole passes; no pick and no source uses this `sample`.
pub(in crate::stages) fn pass_key(seed: u64) -> StreamKey {
    StreamKey {
        sample: u32::MAX - 1,
        ..pick_key(seed, 0, 0)
    }
}

impl Mixture {
    pub(in crate::stages) async fn open(
        inputs: &Inputs,
        plan: &Plan,
        iteration: u32,
    ) -> Result<Self> {
        let seed = plan.config.run.seed;
        let evol = &plan.config.agentevol;
        let originals = match iteration == 0 || evol.add_original_data {
            true => plan.config.sft.sources.as_slice(),
            false => &[],
        };
        let sft = &plan.config.sft;
        let mut sources = Vec::new();
        let mut validation = Vec::new();
        for (index, given) in originals.iter().enumerate() {
            let key = format!("sft.sources[{index}]");
            let content = content(inputs, plan, (&key, &source_file(index)), given).await?;
            let (content, apart) = split(seed, index, &key, content, sft.validation_share)?;
            if let Some(apart) = apart {
                let order = source_key(seed, iteration, index);
                validation.push(Source::new(key.clone(), apart, 0.0, order));
            }
            let key_of = source_key(seed, iteration, index);
            let share = given.share.unwrap_or(0.0);
            sources.push(Source::new(key, content, share, key_of));
        }
        if sft.validation_share > 0.0 && validation.is_empty() && !sources.is_empty() {
            return Err(Error::stage(format!(
                "sft.validation_share = {} holds out none of the {} rows; raise it, or leave it out",
                sft.validation_share,
                sources.iter().map(|s| s.len).sum::<usize>()
            )));
        }
        for (index, given) in sft.validation_sources.iter().enumerate() {
            let key = format!("sft.validation_sources[{index}]");
            let content = content(inputs, plan, (&key, &validation_file(index)), given).await?;
            let order = source_key(seed, iteration, index);
            validation.push(Source::new(key, content, 0.0, order));
        }
        let given = originals.iter().any(|s| s.share.is_some());
        let mut end = 0.0;
        for source in &mut sources {
            // Without given shares, weigh sources by size.
            end += if given {
                source.share_end
            } else {
                source.len as f64
            };
            source.share_end = end;
        }
        for source in &mut sources {
            source.share_end /= end.max(f64::MIN_POSITIVE);
        }
        if inputs.names().any(|name| name == KEPT) {
            let kept = kept(inputs).await?;
            let index = plan.config.sft.sources.len();
            let own = Source::new(KEPT.into(), kept, 1.0, source_key(seed, iteration, index));
            add_kept(&mut sources, own, evol.share);
        }
        Ok(Self {
            sources,
            seed,
            iteration,
            batch_size: plan.config.sft.batch_size,
            overlong: plan.config.sft.overlong,
            picks: 0,
            passes: sft.epochs.filter(|_| iteration == 0).map(|count| Passes {
                count,
                seed: head(&pass_key(seed).stream()),
                step: 0,
                order: None,
            }),
            validation,
        })
    }

    fn steps_per_pass(&self) -> u32 {
        let rows: usize = self.sources.iter().map(|source| source.len).sum();
        u32::try_from(rows.div_ceil(self.batch_size)).unwrap_or(u32::MAX)
    }

    /// Total optimizer steps, if the run makes whole passes.
    pub(in crate::stages) fn steps(&self) -> Option<u32> {
        let passes = self.passes.as_ref()?;
        Some(self.steps_per_pass().saturating_mul(passes.count))
    }

    /// Passes made before a step, if the run makes whole passes.
    pub(super) fn passes_before(&self, step: u32) -> Option<f64> {
        self.passes.as_ref()?;
        Some(f64::from(step) / f64::from(self.steps_per_pass()))
    }

    /// All held-out rows, encoded.
    pub(super) fn held_out(&self, policy: &Policy, tokens_max: usize) -> Result<Vec<Encoded>> {
        let rows = |source: &Source| 0..source.len;
        let all = self.validation.iter();
        all.flat_map(|source| rows(source).map(move |row| (source, row)))
            .map(|(source, row)| source.encode(row, policy, tokens_max, self.overlong))
            .collect()
    }

    /// Advances to the first pick of a step.
    pub(super) fn skip_to(&mut self, step: u32) {
        if let Some(passes) = &mut self.passes {
            passes.step = step;
            return;
        }
        while self.picks < u64::from(step) * self.batch_size as u64 {
            self.pick();
        }
    }

    /// The source of the next pick, and the number of earlier picks from that source.
    pub(super) fn pick(&mut self) -> (usize, u64) {
        let stream = pick_key(self.seed, self.iteration, self.picks).stream();
        let chance = head(&stream) as f64 / 2f64.powi(64);
        let last = self.sources.len().saturating_sub(1);
        let index = self
            .sources
            .iter()
            .position(|s| chance < s.share_end)
            .unwrap_or(last);
        self.picks += 1;
        let before = self.sources[index].picks;
        self.sources[index].picks += 1;
        (index, before)
    }

    pub(in crate::stages) fn batch(
        &mut self,
        policy: &Policy,
        tokens_max: usize,
    ) -> Result<Vec<Encoded>> {
        let rows = self.next_rows();
        rows.into_iter()
            .map(|(index, row)| self.sources[index].encode(row, policy, tokens_max, self.overlong))
            .collect()
    }

    /// Source and row of each conversation of the next step.
    pub(super) fn next_rows(&mut self) -> Vec<(usize, usize)> {
        let per_pass = self.steps_per_pass();
        let lengths: Vec<usize> = self.sources.iter().map(|source| source.len).collect();
        let Some(passes) = &mut self.passes else {
            let picked = (0..self.batch_size).map(|_| {
                let (index, position) = self.pick();
                (index, self.sources[index].row(position))
            });
            return picked.collect();
        };
        let all: usize = lengths.iter().sum();
        let (pass, at) = (passes.step / per_pass, (passes.step % per_pass) as usize);
        passes.step += 1;
        let order = permuted(&mut passes.order, passes.seed, pass.into(), all);
        let batch = at * self.batch_size..((at + 1) * self.batch_size).min(all);
        let place = |row: &u32| {
            let (row, mut end) = (*row as usize, 0);
            let source = lengths.iter().position(|len| {
                end += len;
                row < end
            });
            let index = source.expect("the order is one of all rows");
            (index, row + lengths[index] - end)
        };
        order[batch].iter().map(place).collect()
    }
}

/// The order of a pass, computed once per pass.
fn permuted(cache: &mut Option<(u64, Vec<u32>)>, seed: u64, pass: u64, len: usize) -> &[u32] {
    let known = cache.take().filter(|(known, _)| *known == pass);
    let (_, order) = cache.insert(known.unwrap_or_else(|| (pass, permutation(seed, pass, len))));
    order
}

/// The artifact of `init` that holds a source's file.
pub(in crate::stages) fn source_file(index: usize) -> String {
    format!("sft/{index}.json")
}

/// The artifact of `init` that holds a validation source's file.
pub(in crate::stages) fn validation_file(index: usize) -> String {
    format!("sft/validation.{index}.json")
}

async fn content(
    inputs: &Inputs,
    plan: &Plan,
    (key, artifact): (&str, &str),
    given: &SftSource,
) -> Result<Content> {
    match (&given.file, &given.env, &given.ids) {
        (Some(file), ..) => {
            let bytes = inputs.bytes("init", artifact).await?;
            let prefix = plan.reply_prefix();
            let rows = parse_file(&format!("{key}.file {file}"), &bytes, prefix)?;
            Ok(Content::File(rows))
        }
        (None, Some(env), Some(ids)) => {
            solver(plan, key, env, ids.resolve(key)?, given.style.as_deref())
        }
        _ => Err(Error::stage(format!(
            "{key}: give either `file` or `env` with `ids`"
        ))),
    }
}

/// Splits a source into the rows to train on and the held-out rows.
pub(super) fn split(
    seed: u64,
    index: usize,
    key: &str,
    content: Content,
    share: f64,
) -> Result<(Content, Option<Content>)> {
    if share == 0.0 {
        return Ok((content, None));
    }
    let order = head(&split_key(seed, index).stream());
    let apart = held_out(&content.tasks(), share, order);
    if !apart.contains(&true) {
        return Ok((content, None));
    }
    if !apart.contains(&false) {
        return Err(Error::stage(format!(
            "sft.validation_share = {share} holds out all {} rows of {key}: rows of one task stay together; lower it, or \
             give sft.validation_sources",
            apart.len()
        )));
    }
    Ok((
        content.only(&apart, false),
        Some(content.only(&apart, true)),
    ))
}

impl Source {
    /// The row at `position`: every row once per pass, in a new order each time.
    pub(super) fn row(&mut self, position: u64) -> usize {
        let len = self.len as u64;
        let (pass, at) = (position / len, (position % len) as usize);
        permuted(&mut self.order, self.seed, pass, self.len)[at] as usize
    }

    fn encode(
        &self,
        row: usize,
        policy: &Policy,
        tokens_max: usize,
        overlong: OverlongRows,
    ) -> Result<Encoded> {
        let what = format!("{} row {row}", self.what);
        match &self.content {
            Content::Sampled(rows) => Ok(rows[row].clone()),
            Content::File(rows) => rows[row].encode(policy, &what, tokens_max),
            Content::Solver(shown) => shown.encode(row, policy, &what, tokens_max, overlong),
        }
    }

    pub(super) fn new(what: String, content: Content, share_end: f64, order: StreamKey) -> Self {
        Self {
            what,
            len: content.len(),
            content,
            share_end,
            seed: head(&order.stream()),
            picks: 0,
            order: None,
        }
    }
}

/// The sequences that an AgentEvol iteration kept.
async fn kept(inputs: &Inputs) -> Result<Content> {
    let episodes = read::<Episodes>(inputs, KEPT, artifact_names::EPISODES).await?;
    let sequences = episodes.into_vec().into_iter().flat_map(|e| e.sequences);
    let rows = sequences
        .filter(|sequence| sequence.loss_tokens() > 0)
        .map(|sequence| Encoded {
            token_ids: sequence.token_ids,
            loss_mask: sequence.loss_mask,
        });
    Ok(Content::Sampled(rows.collect()))
}

/// Adds the kept trajectories after the demonstrations, whose shares end at 1: with `share` of
/// every batch, or by size. A source without rows is never drawn from.
pub(super) fn add_kept(sources: &mut Vec<Source>, own: Source, share: Option<f64>) {
    if own.len == 0 {
        return;
    }
    let originals: usize = sources.iter().map(|source| source.len).sum();
    let share = match share {
        _ if originals == 0 => 1.0,
        Some(share) => share,
        None => own.len as f64 / (own.len + originals) as f64,
    };
    for source in sources.iter_mut() {
        source.share_end *= 1.0 - share;
    }
    sources.push(own);
}

fn solver(
    plan: &Plan,
    key: &str,
    env: &str,
    ids: Vec<i64>,
    style: Option<&str>,
) -> Result<Content> {
    let environments = plan.config.environments();
    let declared = environments.get(env).ok_or_else(|| {
        Error::stage(format!(
            "{key}.env: `{env}` is not declared under agentgym.envs"
        ))
    })?;
    if !builtin::is_builtin(&declared.env_addr) {
        return Err(Error::stage(format!(
            "{key}.env: `{env}` is played at {}; only built-in environments have a solver, give a `file` instead",
            without_secrets(&declared.env_addr)
        )));
    }
    let known = spec(&declared.task_name).map_err(|e| Error::stage(format!("{key}.env: {e}")))?;
    let solver = tasks(plan, &declared.env_addr)?
        .solver(style.unwrap_or_default())
        .map_err(|e| Error::stage(format!("{key}: {e}")))?;
    let gym = &plan.config.actor_rollout_ref.agentgym;
    let (opening, instruction) = gym.opening_of(known.instruction);
    Ok(Content::Solver(Shown {
        solver,
        ids,
        opening: opening.iter().map(Line::of).collect(),
        instruction,
        reply_prefix: plan.reply_prefix().map(str::to_owned),
    }))
}
