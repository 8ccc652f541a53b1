//! Which demonstrations a step learns from: sources are drawn by share, rows
//! of a source by a permutation per pass. Pick k is a function of the seed and
//! the iteration and k alone. In an AgentEvol run the trajectories that were kept
//! are one more source, whose rows are sequences as they were sampled.

use crate::demonstrations::{Conversation, Encoded, parse_file, solved};
use crate::stages::{head, read};
use crate::{Error, Result, StageContext};
use agentgym_envs::builtin;
use agentgym_envs::demonstration::Solver;
use agentgym_envs::spec::spec;
use agentgym_jobs::config::OverlongRows;
use agentgym_jobs::episode::Episodes;
use agentgym_jobs::plan::Plan;
use agentgym_jobs::random::{Purpose, StreamKey, permutation};
use agentgym_model::Policy;
use agentgym_storage::Inputs;

/// Where the demonstrations come from, and which one comes next.
pub(super) struct Mixture {
    pub(super) sources: Vec<Source>,
    pub(super) seed: u64,
    pub(super) iteration: u32,
    pub(super) batch_size: usize,
    /// What happens to a solver's demonstration that is too long.
    pub(super) overlong: OverlongRows,
    /// Picks so far, over all sources.
    pub(super) picks: u64,
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
    Solver {
        solver: Solver,
        ids: Vec<i64>,
        instruction: String,
    },
    /// Tokens are never encoded again (I6).
    Sampled(Vec<Encoded>),
}

impl Content {
    fn len(&self) -> usize {
        match self {
            Self::File(rows) => rows.len(),
            Self::Solver { ids, .. } => ids.len(),
            Self::Sampled(rows) => rows.len(),
        }
    }
}

/// The input that holds what an AgentEvol iteration kept.
const KEPT: &str = "kept";

/// Which source pick `k` comes from.
pub(in crate::stages) fn pick_key(seed: u64, iteration: u32, k: u64) -> StreamKey {
    StreamKey {
        seed,
        purpose: Purpose::Sft,
        iteration,
        draw: k,
        sample: 0,
    }
}

/// The order of a source; no pick has its sample.
pub(in crate::stages) fn source_key(seed: u64, iteration: u32, index: usize) -> StreamKey {
    StreamKey {
        sample: u32::MAX,
        ..pick_key(seed, iteration, index as u64)
    }
}

impl Mixture {
    pub(super) async fn open(context: &StageContext, plan: &Plan) -> Result<Self> {
        let (seed, iteration) = (plan.config.run.seed, context.part.id.iteration);
        let evol = &plan.config.agentevol;
        let originals = match iteration == 0 || evol.add_original_data {
            true => plan.config.sft.sources.as_slice(),
            false => &[],
        };
        let mut sources = Vec::new();
        for (index, given) in originals.iter().enumerate() {
            let key = format!("sft.sources[{index}]");
            let content = match (&given.file, &given.env, &given.ids) {
                (Some(file), ..) => {
                    let bytes = context
                        .inputs
                        .bytes("init", &format!("sft/{index}.json"))
                        .await?;
                    Content::File(parse_file(&format!("{key}.file {file}"), &bytes)?)
                }
                (None, Some(env), Some(ids)) => {
                    solver(plan, &key, env, ids.resolve(&key)?, given.style.as_deref())?
                }
                _ => {
                    return Err(Error::stage(format!(
                        "{key}: give either `file` or `env` with `ids`"
                    )));
                }
            };
            let key_of = source_key(seed, iteration, index);
            let share = given.share.unwrap_or(0.0);
            sources.push(Source::new(key, content, share, key_of));
        }
        let given = originals.iter().any(|s| s.share.is_some());
        let mut end = 0.0;
        for source in &mut sources {
            // Without shares, by size.
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
        if context.part.inputs.iter().any(|input| input.name == KEPT) {
            let kept = kept(&context.inputs).await?;
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
        })
    }

    /// Counts on to the first pick of a step.
    pub(super) fn skip_to(&mut self, step: u32) {
        while self.picks < u64::from(step) * self.batch_size as u64 {
            self.pick();
        }
    }

    /// The source of the next pick, and the how-manieth pick from it it is.
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

    pub(super) fn batch(&mut self, policy: &Policy, tokens_max: usize) -> Result<Vec<Encoded>> {
        (0..self.batch_size)
            .map(|_| {
                let (index, position) = self.pick();
                let source = &mut self.sources[index];
                let row = source.row(position);
                let what = format!("{} row {row}", source.what);
                match &source.content {
                    Content::Sampled(rows) => Ok(rows[row].clone()),
                    Content::File(rows) => rows[row].encode(policy, &what, tokens_max),
                    Content::Solver {
                        solver,
                        ids,
                        instruction,
                    } => {
                        let limit = (tokens_max, self.overlong);
                        solved((solver, instruction), (ids, row), policy, &what, limit)
                    }
                }
            })
            .collect()
    }
}

impl Source {
    /// Every row once per pass, in a new order each time.
    pub(super) fn row(&mut self, position: u64) -> usize {
        let len = self.len as u64;
        let (pass, at) = (position / len, (position % len) as usize);
        let order = match self.order.take() {
            Some((known, order)) if known == pass => order,
            _ => permutation(self.seed, pass, self.len),
        };
        let row = order[at] as usize;
        self.order = Some((pass, order));
        row
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
    let episodes = read::<Episodes>(inputs, KEPT, "episodes.bin").await?;
    let sequences = episodes.into_vec().into_iter().flat_map(|e| e.sequences);
    let rows = sequences
        .filter(|sequence| sequence.loss_tokens() > 0)
        .map(|sequence| Encoded {
            token_ids: sequence.token_ids,
            loss_mask: sequence.loss_mask,
        });
    Ok(Content::Sampled(rows.collect()))
}

/// Puts what was kept behind the demonstrations, whose shares end at 1: with
/// `share` of every batch, or by size. What has no rows is never drawn from.
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
            declared.env_addr
        )));
    }
    let known = spec(&declared.task_name).map_err(|e| Error::stage(format!("{key}.env: {e}")))?;
    let solver = builtin::parse(&declared.env_addr)
        .and_then(|address| Solver::new(&address.source, style.unwrap_or_default()))
        .map_err(|e| Error::stage(format!("{key}: {e}")))?;
    let gym = &plan.config.actor_rollout_ref.agentgym;
    let instruction = gym.instruction_of(known.instruction);
    Ok(Content::Solver {
        solver,
        ids,
        instruction,
    })
}
