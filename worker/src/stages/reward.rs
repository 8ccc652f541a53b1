//! `reward`: asks an HTTP function for the reward of each episode of a part of the rollouts, and
//! writes the episodes again with its rewards in the environment's place. All later stages read
//! these.
//!
//! A request is `POST reward.url` with `{"function": NAME, "trajectories": [...]}`, the trajectories
//! in the form of `export --trajectories`. The answer is `{"rewards": [...]}`, one for each trajectory:
//! a number, or an object that says as well what it is made of and why, or null where the function
//! cannot tell: such an episode is excluded and counted, never scored 0 (I8). A request that fails is repeated; when it has failed too often the attempt
//! fails and nothing is committed. Later attempts, resumed runs and forks read the committed
//! rewards, so the function is not asked again and need not be deterministic.

use super::artifacts::read;
use super::play;
use crate::metrics;
use crate::{Beat, Error, Report, Result, StageContext};
use agentgym_envs::{Unread, body, causes, excerpt, http_client, redirected, shown};
use agentgym_jobs::artifact_names;
use agentgym_jobs::config::Reward;
use agentgym_jobs::episode::{Episode, Episodes, JUDGEMENT, Judgement, Outcome};
use agentgym_jobs::trajectory::Trajectory;
use agentgym_record::figures::mean;
use agentgym_record::metrics::RewardMetrics;
use agentgym_storage::Outputs;
use futures::stream::{self, StreamExt};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

/// Requests in progress at once.
const REQUESTS_MAX: usize = 4;
/// Largest answer that is read.
const ANSWER_BYTES_MAX: usize = 16 << 20;
/// Longest reason that an episode keeps; of a longer one the beginning.
const REASON_BYTES_MAX: usize = 2000;
/// Most components of a reward, and the longest name of one.
const COMPONENTS_MAX: usize = 32;
const NAME_BYTES_MAX: usize = 60;
/// Longest pause between two requests.
const PAUSE_MAX: Duration = Duration::from_secs(30);

#[derive(Serialize)]
struct Request<'a> {
    function: &'a str,
    trajectories: Vec<Trajectory>,
}

#[derive(Deserialize)]
struct Answer {
    rewards: Vec<Option<Given>>,
}

/// What is given for a trajectory.
#[derive(Deserialize)]
#[serde(untagged)]
enum Given {
    Reward(f64),
    Judged {
        /// Checked where it is said: an answer in another order judges the wrong episode.
        item_id: Option<String>,
        // Without it, a misspelt key would exclude every episode.
        #[serde(deserialize_with = "Option::deserialize")]
        reward: Option<f64>,
        #[serde(flatten)]
        judgement: Judgement,
    },
}

impl Given {
    fn reward(&self) -> Option<f64> {
        match self {
            Self::Reward(reward) => Some(*reward),
            Self::Judged { reward, .. } => *reward,
        }
    }

    /// What is wrong with it as the judgement of `item_id`.
    fn problem(&self, item_id: &str) -> Option<String> {
        // Training uses 32-bit floats, in which a larger number would be infinite.
        let large = |number: f64| !(number as f32).is_finite();
        if let Some(reward) = self.reward().filter(|reward| large(*reward)) {
            return Some(format!("a reward beyond all bounds, {reward:e}"));
        }
        let Self::Judged {
            item_id: named,
            judgement,
            ..
        } = self
        else {
            return None;
        };
        if let Some(named) = named.as_deref().filter(|named| *named != item_id) {
            return Some(format!(
                "a reward of {named} in the place of {item_id}; answer in the order of the request"
            ));
        }
        let parts = &judgement.components;
        let odd = |name: &String| !(1..=NAME_BYTES_MAX).contains(&name.len());
        if parts.len() > COMPONENTS_MAX || parts.keys().any(odd) {
            return Some(format!(
                "components that are more than {COMPONENTS_MAX}, or with a name that is not 1 to {NAME_BYTES_MAX} bytes"
            ));
        }
        parts
            .iter()
            .find(|(_, value)| large(**value))
            .map(|(name, value)| format!("a component beyond all bounds, {name} {value:e}"))
    }

    /// What it says beside the reward, as an episode keeps it.
    fn told(&self) -> Option<String> {
        let Self::Judged { judgement, .. } = self else {
            return None;
        };
        let mut kept = judgement.clone();
        let end = kept.reason.floor_char_boundary(REASON_BYTES_MAX);
        if end < kept.reason.len() {
            kept.reason.truncate(end);
            kept.reason.push('…');
        }
        let said = !kept.components.is_empty() || !kept.reason.is_empty();
        said.then(|| serde_json::to_string(&kept).expect("a judgement is plain data"))
    }
}

pub(super) async fn run(context: &mut StageContext, outputs: &mut Outputs) -> Result<Report> {
    const ROLLOUT: &str = "rollout";
    let function = Function::of(&context.plan.config.reward)?;
    let mut names = vec![artifact_names::EPISODES];
    if context.plan.plays_baselines() {
        names.push(artifact_names::BASELINES);
    }
    let mut of_part = RewardMetrics::default();
    for name in names {
        let episodes = read::<Episodes>(&context.inputs, ROLLOUT, name).await?;
        let asked = function.rewarded(episodes.into_vec(), &context.beat);
        let (episodes, metrics) = tokio::select! {
            () = context.cancel.cancelled() => return Err(Error::Cancelled),
            asked = asked => asked?,
        };
        play::write(outputs, name, episodes).await?;
        if name == artifact_names::EPISODES {
            of_part = metrics;
        }
    }
    metrics::write(outputs, &of_part).await?;
    Ok(Report::default())
}

/// The function, and how it is called.
struct Function<'a> {
    config: &'a Reward,
    name: &'a str,
    url: &'a str,
    http: reqwest::Client,
}

impl<'a> Function<'a> {
    fn of(config: &'a Reward) -> Result<Self> {
        let (Some(name), Some(url)) = (&config.function, &config.url) else {
            return Err(Error::stage("reward.function has no reward.url"));
        };
        let http = http_client(url)
            .timeout(Duration::from_secs_f64(config.timeout_s))
            .build()
            .map_err(|e| Error::Environment(format!("no HTTP client: {e}")))?;
        Ok(Self {
            config,
            name,
            url,
            http,
        })
    }

    /// The episodes with the function's rewards. Episodes that cannot be used are not sent.
    async fn rewarded(
        &self,
        mut episodes: Vec<Episode>,
        beat: &Beat,
    ) -> Result<(Vec<Episode>, RewardMetrics)> {
        let usable: Vec<usize> = (0..episodes.len())
            .filter(|&index| episodes[index].usable())
            .collect();
        let requests = usable
            .chunks(self.config.batch_size)
            .map(|indices| Request {
                function: self.name,
                trajectories: (indices.iter())
                    .map(|&index| Trajectory::of(&episodes[index]))
                    .collect(),
            });
        let requests: Vec<Request<'_>> = requests.collect();
        let answers: Vec<_> = (requests.iter())
            .map(|request| self.answer(request, beat))
            .collect();
        let mut answers = stream::iter(answers).buffered(REQUESTS_MAX);
        let mut rewards = Vec::new();
        while let Some(answer) = answers.next().await {
            rewards.extend(answer?);
            beat.progress(rewards.len() as u64, usable.len() as u64, "rewards");
        }
        let (mut own, mut environment, mut unrewarded) = (Vec::new(), Vec::new(), 0);
        let mut components: BTreeMap<String, Vec<f64>> = BTreeMap::new();
        for (index, given) in usable.into_iter().zip(rewards) {
            let episode = &mut episodes[index];
            let told = given.as_ref().and_then(Given::told);
            if let Some(told) = told {
                // A harness may have said something too.
                episode.extra.retain(|(name, _)| name != JUDGEMENT);
                episode.extra.push((JUDGEMENT.to_owned(), told));
            }
            match given.as_ref().and_then(Given::reward) {
                Some(reward) => {
                    environment.push(episode.reward);
                    own.push(reward);
                    episode.reward = reward;
                    if let Some(Given::Judged { judgement, .. }) = given {
                        for (name, value) in judgement.components {
                            components.entry(name).or_default().push(value);
                        }
                    }
                }
                None => {
                    unrewarded += 1;
                    episode.outcome = Outcome::EnvFault;
                    episode.fault = Some(format!("{} has no reward for it", self.name));
                }
            }
        }
        let metrics = RewardMetrics {
            rewarded: own.len(),
            unrewarded,
            reward: mean(own),
            environment_reward: mean(environment),
            components: (components.into_iter())
                .map(|(name, values)| (name, mean(values)))
                .collect(),
        };
        Ok((episodes, metrics))
    }

    /// The rewards of one request, which is repeated as often as the config allows.
    async fn answer(&self, request: &Request<'_>, beat: &Beat) -> Result<Vec<Option<Given>>> {
        let mut pause = Duration::from_millis(500);
        for left in (0..=self.config.retries).rev() {
            beat.tick();
            let found = match self.ask(request).await {
                Ok(rewards) => return Ok(rewards),
                Err(found) => found,
            };
            let what = format!("{} at {}: {found}", self.name, shown(self.url));
            if left == 0 {
                return Err(Error::Environment(format!(
                    "no rewards from {what} ({} requests; reward.url and reward.retries may be changed by \
                     `agentgym-submit resume`)",
                    self.config.retries + 1
                )));
            }
            tracing::warn!("{what}; asking again in {:.1} s", pause.as_secs_f64());
            tokio::time::sleep(pause).await;
            pause = PAUSE_MAX.min(pause * 2);
        }
        unreachable!("the last round returns")
    }

    /// The rewards, or what was found in their place.
    async fn ask(&self, request: &Request<'_>) -> std::result::Result<Vec<Option<Given>>, String> {
        let failed = |e: reqwest::Error| match e.is_timeout() {
            true => format!(
                "no answer in {} s (reward.timeout_s)",
                self.config.timeout_s
            ),
            false => format!("no connection ({})", causes(&e)),
        };
        let sent = self.http.post(self.url).json(request).send();
        let mut response = sent.await.map_err(failed)?;
        let bytes = body(&mut response, ANSWER_BYTES_MAX);
        let bytes = bytes.await.map_err(|unread| match unread {
            Unread::Failed(e) => failed(e),
            Unread::TooLarge => format!("an answer of more than {ANSWER_BYTES_MAX} bytes"),
        })?;
        let text = || excerpt(&bytes);
        if let Some(to) = redirected(&response) {
            return Err(format!(
                "status {} to {to}: redirects are not followed; where that address is meant, set reward.url to it",
                response.status().as_u16()
            ));
        }
        if !response.status().is_success() {
            return Err(format!("status {}: {}", response.status().as_u16(), text()));
        }
        let answer: Answer = serde_json::from_slice(&bytes)
            .map_err(|e| {
                format!(
                    "not {{\"rewards\": [number, null or {{\"reward\": …, \"components\": {{…}}, \"reason\": …}}, \
                     …]}} ({e}): {}",
                    text()
                )
            })?;
        let (found, expected) = (answer.rewards.len(), request.trajectories.len());
        if found != expected {
            return Err(format!("{found} rewards for {expected} trajectories"));
        }
        for (given, trajectory) in answer.rewards.iter().zip(&request.trajectories) {
            let problem = given
                .as_ref()
                .and_then(|given| given.problem(&trajectory.item_id));
            if let Some(problem) = problem {
                return Err(problem);
            }
        }
        Ok(answer.rewards)
    }
}

#[cfg(test)]
mod tests;
