//! Who worked when on what, and what it cost. Times are the workers' clocks, for people.

use super::known::Known;
use crate::fork::FORK;
use crate::{Result, text};
use agentgym_record::Stats;
use agentgym_storage::{AttemptRecord, PartKey};
use serde::Serialize;
use serde_json::{Map, Value};
use std::collections::{BTreeMap, HashMap};

/// One attempt on a worker's lane.
#[derive(Debug, Clone, PartialEq)]
struct Bar {
    slot: PartKey,
    attempt: u32,
    worker: String,
    start: f64,
    /// When it ended. For a worker that vanished: when the next attempt at the part began.
    end: Option<f64>,
    outcome: &'static str,
    message: String,
    /// What an hour of the worker costs, where its operator said so.
    price: Option<f64>,
    labels: BTreeMap<String, String>,
}

/// Bytes between a worker and the store, and what that cost in time; what was made again instead; and what
/// environments took.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Moved {
    pub(crate) put_bytes: u64,
    /// Those of policies read ahead of their part included.
    pub(crate) got_bytes: u64,
    /// Time during which a request was open.
    pub(crate) store_s: f64,
    /// Of that, the time in which nothing was computed or played.
    pub(crate) store_waited_s: f64,
    /// Bytes of optimizer states, written after the commits that name them.
    pub(crate) put_after_bytes: u64,
    /// Updates whose states were not in the store when somebody needed them.
    pub(crate) updates_made_again: u64,
    /// How long that took.
    pub(crate) made_again_s: f64,
    /// Of its episodes' time, summed over those that are played at once, what environments took: with an agent
    /// behind a harness all that is not the policy's.
    pub(crate) environments_s: f64,
}

impl Moved {
    fn of(stats: &Stats) -> Self {
        Self {
            put_bytes: stats.put_bytes.unwrap_or(0),
            got_bytes: stats.got_bytes.unwrap_or(0) + stats.got_ahead_bytes.unwrap_or(0),
            store_s: stats.store_s.unwrap_or(0.0),
            store_waited_s: stats.store_waited_s.unwrap_or(0.0),
            put_after_bytes: stats.put_after_bytes.unwrap_or(0),
            updates_made_again: stats.updates_made_again.unwrap_or(0),
            made_again_s: stats.made_again_s.unwrap_or(0.0),
            environments_s: stats.env_s.unwrap_or(0.0),
        }
    }

    fn add(&mut self, other: Self) {
        self.put_bytes += other.put_bytes;
        self.got_bytes += other.got_bytes;
        self.store_s += other.store_s;
        self.store_waited_s += other.store_waited_s;
        self.put_after_bytes += other.put_after_bytes;
        self.updates_made_again += other.updates_made_again;
        self.made_again_s += other.made_again_s;
        self.environments_s += other.environments_s;
    }

    fn rounded(self) -> Self {
        Self {
            store_s: round(self.store_s),
            store_waited_s: round(self.store_waited_s),
            made_again_s: round(self.made_again_s),
            environments_s: round(self.environments_s),
            ..self
        }
    }
}

impl Bar {
    fn seconds(&self) -> f64 {
        self.end.map_or(0.0, |end| (end - self.start).max(0.0))
    }

    fn cost(&self) -> Option<f64> {
        self.price.map(|price| text::cost(price, self.seconds()))
    }

    fn part(&self) -> String {
        let slot = &self.slot;
        format!("{}/{}/{}", slot.iteration, slot.stage, slot.part)
    }
}

/// Every attempt, by start. `price` is that of workers whose operators named none.
async fn bars(known: &Known, price: Option<f64>) -> Result<Vec<Bar>> {
    let attempts = known.attempts().await?;
    let mut out = Vec::new();
    let state = known.state().await;
    for (slot, all) in attempts.iter() {
        let id = crate::runs::part_id(slot);
        let manifest = id.and_then(|id| state.manifests.get(&id));
        for (at, record) in all.iter().enumerate() {
            let next = all.get(at + 1).map(|next| next.start.began_unix_s());
            let committed = manifest.filter(|m| m.attempt == record.number && m.origin.is_none());
            let work = committed.and_then(|m| m.work.as_ref());
            let start = record.start.began_unix_s();
            let (outcome, end) = match (work, &record.end) {
                (Some(work), _) => ("committed", Some(start + work.wall_s)),
                (None, Some(end)) => (end.outcome.name(), Some(start + end.wall_s)),
                // Somebody else began or finished the part: this worker is gone.
                (None, None) if next.is_some() || manifest.is_some() => ("killed", next),
                (None, None) => ("open", None),
            };
            out.push(Bar {
                slot: slot.clone(),
                attempt: record.number,
                worker: record.start.worker.clone(),
                start,
                end,
                outcome,
                message: message(record),
                price: record.start.machine.price.or(price),
                labels: record.start.machine.labels.clone(),
            });
        }
    }
    out.sort_by(|a, b| a.start.total_cmp(&b.start));
    Ok(out)
}

fn message(record: &AttemptRecord) -> String {
    let of_end = record.end.as_ref().map(|end| end.message.clone());
    record.damage.clone().or(of_end).unwrap_or_default()
}

/// Lane, start, end, part, attempt, outcome and message.
type BarRow = (usize, f64, Option<f64>, String, u32, &'static str, String);

/// The Gantt chart's data: lanes by worker, and bars as arrays of `columns`.
#[derive(Debug, Serialize)]
pub(crate) struct Attempts {
    run: String,
    begun_unix_s: f64,
    now_s: f64,
    lanes: Vec<String>,
    columns: [&'static str; 7],
    bars: Vec<BarRow>,
}

pub(super) async fn attempts(known: &Known) -> Result<Attempts> {
    let bars = bars(known, None).await?;
    let begun = bars.first().map_or(0.0, |bar| bar.start);
    let (mut lanes, mut rows) = (Vec::new(), Vec::new());
    let mut lane_of: HashMap<String, usize> = HashMap::new();
    for bar in bars {
        let lane = *lane_of.entry(bar.worker.clone()).or_insert_with(|| {
            lanes.push(bar.worker.clone());
            lanes.len() - 1
        });
        let (start, end) = (
            round(bar.start - begun),
            bar.end.map(|end| round(end - begun)),
        );
        let part = bar.part();
        rows.push((
            lane,
            start,
            end,
            part,
            bar.attempt,
            bar.outcome,
            bar.message,
        ));
    }
    Ok(Attempts {
        run: known.plan().await.run.to_string(),
        begun_unix_s: begun,
        now_s: round(text::unix_now_s() as f64 - begun),
        lanes,
        columns: [
            "lane", "start_s", "end_s", "part", "attempt", "outcome", "message",
        ],
        bars: rows,
    })
}

fn round(seconds: f64) -> f64 {
    (seconds * 1000.0).round() / 1000.0
}

/// Seconds of useful, lost and idle work, and what they cost.
#[derive(Debug, Clone, Copy, Default)]
struct Account {
    useful_s: f64,
    lost_s: f64,
    idle_s: f64,
    useful_cost: f64,
    lost_cost: f64,
    idle_cost: f64,
    /// Seconds of workers without a price.
    unpriced_s: f64,
    attempts: u32,
    lost: u32,
    bytes: u64,
    moved: Moved,
}

impl Account {
    fn add(&mut self, bar: &Bar, bytes: u64, moved: Moved) {
        self.attempts += 1;
        self.moved.add(moved);
        let seconds = bar.seconds();
        let (spent_s, cost) = match bar.outcome {
            "committed" => {
                self.bytes += bytes;
                (&mut self.useful_s, &mut self.useful_cost)
            }
            "open" => return,
            _ => {
                self.lost += 1;
                (&mut self.lost_s, &mut self.lost_cost)
            }
        };
        *spent_s += seconds;
        match bar.cost() {
            Some(spent) => *cost += spent,
            None => self.unpriced_s += seconds,
        }
    }

    fn idle(&mut self, seconds: f64, price: Option<f64>) {
        self.idle_s += seconds;
        match price {
            Some(price) => self.idle_cost += text::cost(price, seconds),
            None => self.unpriced_s += seconds,
        }
    }

    fn spent_s(&self) -> f64 {
        self.useful_s + self.lost_s + self.idle_s
    }

    /// `None` where no worker had a price.
    fn cost(&self) -> Option<f64> {
        let cost = self.useful_cost + self.lost_cost + self.idle_cost;
        (self.unpriced_s < self.spent_s()).then_some(cost)
    }

    fn spent(&self) -> Spent {
        let of = |cost: f64| self.cost().map(|_| cost);
        Spent {
            useful_s: round(self.useful_s),
            lost_s: round(self.lost_s),
            attempts: self.attempts,
            lost_attempts: self.lost,
            bytes: self.bytes,
            moved: self.moved.rounded(),
            useful_cost: of(self.useful_cost),
            lost_cost: of(self.lost_cost),
            cost: self.cost(),
        }
    }

    fn idled(&self) -> Idle {
        Idle {
            idle_s: round(self.idle_s),
            idle_cost: self.cost().map(|_| self.idle_cost),
        }
    }
}

/// Useful and lost work, and what it cost; no cost where no worker had a price.
#[derive(Debug, Clone, Default, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Spent {
    pub(crate) useful_s: f64,
    pub(crate) lost_s: f64,
    pub(crate) attempts: u32,
    pub(crate) lost_attempts: u32,
    /// Of the artifacts that commits name.
    pub(crate) bytes: u64,
    /// Of all attempts but those that were killed.
    #[serde(flatten)]
    pub(crate) moved: Moved,
    pub(crate) useful_cost: Option<f64>,
    pub(crate) lost_cost: Option<f64>,
    pub(crate) cost: Option<f64>,
}

/// What lies between a worker's attempts.
#[derive(Debug, Clone, Default, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Idle {
    pub(crate) idle_s: f64,
    pub(crate) idle_cost: Option<f64>,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct StageLine {
    pub(crate) stage: String,
    #[serde(flatten)]
    pub(crate) spent: Spent,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct WorkerLine {
    pub(crate) worker: String,
    #[serde(flatten)]
    pub(crate) spent: Spent,
    #[serde(flatten)]
    pub(crate) idle: Idle,
    price: Option<f64>,
    labels: BTreeMap<String, String>,
}

/// Everything together.
#[derive(Debug, Default, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct TotalLine {
    /// `all`.
    pub(crate) stage: String,
    #[serde(flatten)]
    pub(crate) spent: Spent,
    #[serde(flatten)]
    pub(crate) idle: Idle,
    /// Seconds of workers without a price.
    pub(crate) unpriced_s: f64,
}

/// An attempt whose work nobody uses.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct LostAttempt {
    pub(crate) part: String,
    pub(crate) attempt: u32,
    pub(crate) worker: String,
    pub(crate) outcome: &'static str,
    pub(crate) lost_s: f64,
    pub(crate) lost_cost: Option<f64>,
    pub(crate) message: String,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct IterationLine {
    iteration: u32,
    useful_s: f64,
    useful_cost: Option<f64>,
    #[serde(flatten)]
    moved: Moved,
}

/// `ledger RUN`: seconds and money by stage and by worker; and per solved episode.
#[derive(Debug, Default, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Ledger {
    pub(crate) run: String,
    pub(crate) total: TotalLine,
    pub(crate) stages: Vec<StageLine>,
    pub(crate) workers: Vec<WorkerLine>,
    pub(crate) lost: Vec<LostAttempt>,
    pub(crate) iterations: Vec<IterationLine>,
    pub(crate) solved_episodes: f64,
    pub(crate) worker_s_per_solved_episode: Option<f64>,
    pub(crate) cost_per_solved_episode: Option<f64>,
}

/// What an attempt that did not commit said at its end.
fn ended(attempts: &[AttemptRecord], number: u32) -> Option<&Map<String, Value>> {
    let record = attempts.iter().find(|record| record.number == number)?;
    Some(&record.end.as_ref()?.stats)
}

/// A worker's account, with its first and last sign of life, its newest price and its labels.
#[derive(Debug, Clone)]
struct Lane {
    account: Account,
    first: f64,
    last: f64,
    price: Option<f64>,
    labels: BTreeMap<String, String>,
}

/// Worker-seconds and money by stage and by worker: useful, lost and idle; and per solved episode.
/// Idle is what lies between a worker's attempts. `price` is that of workers whose operators named none.
pub(super) async fn ledger(known: &Known, price: Option<f64>) -> Result<Ledger> {
    let bars = bars(known, price).await?;
    let attempts = known.attempts().await?;
    let mut stages = BTreeMap::<String, Account>::new();
    let mut iterations = BTreeMap::<u32, Account>::new();
    let mut lanes = BTreeMap::<String, Lane>::new();
    let mut total = Account::default();
    let state = known.state().await;
    // What a fork took over was made, and paid for, elsewhere.
    let own = || bars.iter().filter(|bar| bar.worker != FORK);
    for bar in own() {
        let id = crate::runs::part_id(&bar.slot);
        let manifest = id.and_then(|id| state.manifests.get(&id));
        let bytes = manifest.map_or(0, |m| m.outputs.iter().map(|o| o.size).sum());
        let stats = match bar.outcome {
            "committed" => manifest.and_then(|m| Some(&m.work.as_ref()?.stats)),
            _ => (attempts.get(&bar.slot)).and_then(|all| ended(all, bar.attempt)),
        };
        let stats = id
            .zip(stats)
            .and_then(|(id, all)| Stats::read(id, all).ok());
        let moved = stats.as_ref().map(Moved::of).unwrap_or_default();
        let stage = stages.entry(bar.slot.stage.clone()).or_default();
        stage.add(bar, bytes, moved);
        let iteration = iterations.entry(bar.slot.iteration).or_default();
        iteration.add(bar, bytes, moved);
        total.add(bar, bytes, moved);
        let end = bar.end.unwrap_or(bar.start);
        let lane = lanes.entry(bar.worker.clone()).or_insert(Lane {
            account: Account::default(),
            first: bar.start,
            last: end,
            price: None,
            labels: BTreeMap::new(),
        });
        lane.account.add(bar, bytes, moved);
        lane.first = lane.first.min(bar.start);
        lane.last = lane.last.max(end);
        lane.price = bar.price.or(lane.price);
        lane.labels.clone_from(&bar.labels);
    }
    let mut workers = Vec::new();
    for (name, lane) in &mut lanes {
        let account = &mut lane.account;
        let idle = (lane.last - lane.first - account.spent_s()).max(0.0);
        account.idle(idle, lane.price);
        total.idle(idle, lane.price);
        workers.push(WorkerLine {
            worker: name.clone(),
            spent: account.spent(),
            idle: account.idled(),
            price: lane.price,
            labels: lane.labels.clone(),
        });
    }
    let played = state.book.rows().filter_map(|(_, row)| row.played());
    let solved: f64 = played.map(|of| of.success * of.episodes as f64).sum();
    // The sum of nothing is −0.
    let solved = solved.round() + 0.0;
    let stages = stages.iter().map(|(stage, account)| StageLine {
        stage: stage.clone(),
        spent: account.spent(),
    });
    let iterations = iterations.iter().map(|(n, account)| IterationLine {
        iteration: *n,
        useful_s: round(account.useful_s),
        useful_cost: account.cost().map(|_| account.useful_cost),
        moved: account.moved.rounded(),
    });
    let is_lost = |bar: &&Bar| !matches!(bar.outcome, "committed" | "open");
    let lost = own().filter(is_lost).map(|bar| LostAttempt {
        part: bar.part(),
        attempt: bar.attempt,
        worker: bar.worker.clone(),
        outcome: bar.outcome,
        lost_s: round(bar.seconds()),
        lost_cost: bar.cost(),
        message: bar.message.clone(),
    });
    let per_solved = |spent: f64| (solved > 0.0).then(|| spent / solved);
    Ok(Ledger {
        run: state.view.plan.run.to_string(),
        total: TotalLine {
            stage: "all".to_owned(),
            spent: total.spent(),
            idle: total.idled(),
            unpriced_s: round(total.unpriced_s),
        },
        stages: stages.collect(),
        workers,
        lost: lost.collect(),
        iterations: iterations.collect(),
        solved_episodes: solved,
        worker_s_per_solved_episode: per_solved(total.spent_s()).map(round),
        cost_per_solved_episode: total.cost().and_then(per_solved),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bar(outcome: &'static str, seconds: f64, price: Option<f64>) -> Bar {
        Bar {
            slot: PartKey {
                run: "r".parse().unwrap(),
                iteration: 1,
                stage: "rollout".into(),
                part: 0,
            },
            attempt: 1,
            worker: "w".into(),
            start: 100.0,
            end: (outcome != "open").then_some(100.0 + seconds),
            outcome,
            message: String::new(),
            price,
            labels: BTreeMap::new(),
        }
    }

    #[test]
    fn seconds_become_money_only_where_a_price_is_known() {
        let mut account = Account::default();
        let moved = Moved {
            put_bytes: 7,
            store_waited_s: 0.5,
            ..Moved::default()
        };
        account.add(&bar("committed", 1800.0, None), 10, moved);
        assert_eq!((account.useful_s, account.cost()), (1800.0, None));
        account.add(&bar("committed", 3600.0, Some(2.0)), 5, moved);
        account.add(&bar("killed", 1800.0, Some(2.0)), 5, moved);
        account.add(&bar("open", 0.0, Some(2.0)), 0, moved);
        account.idle(900.0, Some(4.0));
        assert_eq!((account.attempts, account.lost, account.bytes), (4, 1, 15));
        assert_eq!((account.useful_cost, account.lost_cost), (2.0, 1.0));
        assert_eq!((account.idle_cost, account.cost()), (1.0, Some(4.0)));
        assert_eq!(account.unpriced_s, 1800.0);
        let line = account.spent();
        assert_eq!((line.cost, line.lost_attempts), (Some(4.0), 1));
        let moved = line.moved;
        // An attempt without a commit has moved bytes too.
        assert_eq!((moved.put_bytes, moved.store_waited_s), (28, 2.0));
    }
}
