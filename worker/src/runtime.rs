//! The worker's loop: takes jobs from the queue, one at a time per device; plans after every commit
//! and periodically; drains on request.

mod ends;
mod planning;
mod prefetch;

use crate::Cause;
use crate::attempt::{self, Ended};
use crate::bench::AttemptContext;
use crate::context::{Event, Resources};
use crate::gateway::{AgentGateway, GatewayOptions};
use crate::health::Health;
use crate::meters::Meters;
use crate::run_state::RunState;
use crate::stages::StageFunctions;
use crate::{Error, Folders, Result, panics};
use agentgym_jobs::pipeline::{Part, PartId, Stage, parts};
use agentgym_model::{Device, Dtype};
use agentgym_queue::{Claim, ClaimGuard, Gate, Handled, Job, Queue};
use agentgym_storage::{MachineFacts, Patience, RunId, Store};
use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Mutex, broadcast};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// How long a job is hidden that cannot begin here.
const NOT_MINE_PAUSE: Duration = Duration::from_secs(1);
/// Jobs of another run are left to others for this long.
const NOT_MINE_FOR: Duration = Duration::from_secs(3600);
/// Wait before a part is tried again that a failed store or queue has ended.
const TROUBLE_PAUSE: Duration = Duration::from_secs(2);
/// How often an attempt in progress looks at its claim, the plan and the store, at least.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// How long a store or queue may fail before a worker that ends with its run gives up. Other
/// workers keep retrying: an operator has to repair it.
const TROUBLE_MAX: Duration = Duration::from_secs(60);
/// When a queue has failed for this long, the store is probed too: a SQLite queue is next to a
/// folder store, and the store reports a full disk clearly.
const TROUBLE_ASK_STORE: Duration = Duration::from_secs(5);

/// The options of a worker.
pub struct WorkerOptions {
    /// The object store: the only durable state.
    pub store: Store,
    /// The queue, a hint.
    pub queue: Queue,
    /// Unique among live workers.
    pub name: String,
    /// Stages this worker takes; empty for all.
    pub stages: Vec<Stage>,
    /// The stage functions: [`crate::stages::Stages`] in every program.
    pub functions: Arc<dyn StageFunctions>,
    /// Compute threads.
    pub threads: usize,
    /// `cpu`, `cuda:N`, or `auto` for a GPU if there is one.
    pub device: String,
    /// Element type of the operands of matrix products; only f32 on CPU.
    pub dtype: Dtype,
    /// Only this run; otherwise every run of the store.
    pub run: Option<RunId>,
    /// End when the run is finished or stopped.
    pub exit_when_finished: bool,
    /// Where it keeps files.
    pub folders: Folders,
    /// Fetch the next policy while a part is being made. Off in simulated time.
    pub prefetch: bool,
    /// How long a drain waits for turns in progress.
    pub drain_grace: Duration,
    /// What its operator says of its machine; the device is filled in.
    pub machine: MachineFacts,
    /// Where agents behind a harness ask for messages.
    pub gateway: GatewayOptions,
    /// What the process has done so far, for operators.
    pub meters: Arc<Meters>,
}

struct Worker {
    options: WorkerOptions,
    resources: Arc<Resources>,
    events: broadcast::Sender<Event>,
    drain: CancellationToken,
    /// Ends the queue's loops: the run is over, or the worker drains.
    stop: CancellationToken,
    runs: Mutex<BTreeMap<RunId, Arc<Mutex<RunState>>>>,
    running: std::sync::Mutex<BTreeSet<PartId>>,
    /// The last reported reason why each run is stopped: every look finds the same reason again.
    stopped: std::sync::Mutex<BTreeMap<RunId, String>>,
    /// Set when the device no longer responds: the worker ends with this error.
    lost: std::sync::Mutex<Option<Error>>,
    /// Start of the current failure of the store or the queue; reset by a success.
    trouble: std::sync::Mutex<Option<Instant>>,
    health: Arc<Health>,
    gate: Gate,
}

/// Works until drained, or until the run is over if the options say so.
///
/// # Errors
/// An unusable device, or a store that cannot be read at the start.
pub async fn run_worker(
    mut options: WorkerOptions,
    events: broadcast::Sender<Event>,
    drain: CancellationToken,
) -> Result<()> {
    let device = match options.device.as_str() {
        "auto" => {
            let (device, line) = Device::auto(options.dtype)?;
            tracing::info!("{line}");
            device
        }
        name => Device::parse(name, options.dtype)?,
    };
    let device_name = match options.device.as_str() {
        "auto" if device.numeric_class().starts_with("cuda") => "cuda:0",
        "auto" => "cpu",
        name => name,
    };
    let device_name = device_name.to_owned();
    options.machine.device.clone_from(&device_name);
    (options.meters).worker(&options.name, &device_name, device.numeric_class());
    let resources = Arc::new(Resources {
        gateway: Arc::new(AgentGateway::open(options.gateway.clone()).await?),
        meters: Arc::clone(&options.meters),
        drain_grace: options.drain_grace,
        ..Resources::new(device.threads(options.threads), device)
    });
    let queue = options.queue.clone();
    let mut stages = match options.stages.as_slice() {
        [] => Stage::ALL.to_vec(),
        some => some.to_vec(),
    };
    // Stages that block nothing come first. There is always another rollout to play, so on a single
    // worker an evaluation that is taken last would wait for the end of the run.
    stages.sort_by_key(|stage| stage.facts().blocks);
    let classes: Vec<&str> = stages.iter().map(|s| s.name()).collect();
    let name = options.name.clone();
    let gate = Gate::new(1);
    let stop = drain.child_token();
    let health = Health::new(gate.clone(), Arc::clone(&options.meters));
    // Outside of an attempt there is nothing to wait for, and no request may hang for ever.
    options.store = options.store.patient(Impatient);
    let worker = Arc::new(Worker {
        options,
        resources,
        events,
        drain,
        stop: stop.clone(),
        runs: Mutex::default(),
        running: std::sync::Mutex::default(),
        stopped: std::sync::Mutex::default(),
        lost: std::sync::Mutex::default(),
        trouble: std::sync::Mutex::default(),
        health,
        gate: gate.clone(),
    });
    if let Some(run) = worker.options.run.clone() {
        panics::caught(worker.state(&run)).await?;
    }
    tracing::info!(worker = %name, device = %device_name, numeric_class = %worker.resources.device.numeric_class(), threads = worker.resources.threads, "ready");
    let planner = tokio::spawn(Arc::clone(&worker).plan_now_and_then());
    let prefetch = tokio::spawn(Arc::clone(&worker).prefetch_now_and_then());
    let minder = tokio::spawn(Arc::clone(&worker).mind_health());
    let carrier = tokio::spawn(Arc::clone(&worker.resources.deliveries).carry_out());
    let herald = tokio::spawn(Arc::clone(&worker).tell_fleet());
    let handler = {
        let worker = Arc::clone(&worker);
        move |job: Job| {
            let worker = Arc::clone(&worker);
            async move { worker.handle(job).await }
        }
    };
    let working = queue.work(&name, &classes, gate, handler, stop.clone());
    // However this ends, the tasks and servers started above are still stopped.
    let worked = panics::caught(working).await;
    stop.cancel();
    planner.abort();
    prefetch.abort();
    minder.abort();
    worker.finish_deliveries().await;
    carrier.abort();
    herald.abort();
    worker.say_goodbye().await;
    worker.resources.environments.stop().await;
    if let Some(error) = held(&worker.lost).take() {
        return Err(error);
    }
    worked?;
    Ok(())
}

struct Impatient;

impl Patience for Impatient {}

impl Worker {
    async fn state(&self, run: &RunId) -> Result<Arc<Mutex<RunState>>> {
        let mut runs = self.runs.lock().await;
        if let Some(state) = runs.get(run) {
            return Ok(Arc::clone(state));
        }
        let state = Arc::new(Mutex::new(RunState::open(&self.options.store, run).await?));
        runs.insert(run.clone(), Arc::clone(&state));
        Ok(state)
    }

    /// Handles one job. Every failure is recorded or reported; a job that could not begin, or whose
    /// end could not be told, goes back into the queue, for a worker that is well.
    async fn handle(&self, job: Job) -> Handled {
        match panics::caught(self.try_job(&job)).await {
            Ok(handled) => handled,
            Err(e) => {
                tracing::debug!(job = %job.key(), "{e}");
                self.in_trouble(Some(&job.run), e).await;
                Handled::PutBack(Duration::ZERO)
            }
        }
    }

    async fn try_job(&self, job: &Job) -> Result<Handled> {
        let Ok(run) = RunId::from_str(&job.run) else {
            tracing::warn!(job = %job.key(), "not a run of ours");
            return Ok(Handled::Done);
        };
        if self.options.run.as_ref().is_some_and(|only| *only != run) {
            // A job of another run on a shared queue; that run's workers fetch it later.
            self.gate.avoid(&job.run, NOT_MINE_FOR);
            return Ok(Handled::PutBack(NOT_MINE_PAUSE));
        }
        let Ok(stage) = Stage::from_str(&job.stage) else {
            return Ok(Handled::Done);
        };
        let id = PartId {
            iteration: job.iteration,
            stage,
            part: job.part,
        };
        let shared = self.state(&run).await?;
        {
            let mut state = shared.lock().await;
            state.heed_plan(&self.options.queue).await?;
            if state.on_hold() {
                return Ok(Handled::Done);
            }
            if state.progress.contains(&id) {
                drop(state);
                self.plan_after(&shared, id).await?;
                return Ok(Handled::Done);
            }
        }
        let claim = match self.options.queue.claim(job, &self.options.name).await? {
            Claim::Held(claim) => {
                self.options.meters.claim("held");
                claim
            }
            Claim::Taken { by } => {
                self.options.meters.claim("taken");
                tracing::debug!(part = %id, "held by {by}");
                return Ok(Handled::Done);
            }
        };
        // The claim is released however this ends; otherwise no other worker could take the part
        // until the lease expires.
        let made = panics::caught(self.make(&run, &shared, id, job, &claim)).await;
        release(claim).await;
        match made? {
            Some((number, ended)) => self.after(&run, &shared, id, number, ended).await,
            None => Ok(Handled::Done),
        }
    }

    /// Called with the claim held: an earlier holder has committed by now, so no commit is missed
    /// as long as claims hold.
    ///
    /// A job that was offered once under this plan most likely belongs to a part without attempts.
    /// Then the create-only record of the first attempt is the only request to the store. If that
    /// attempt number is taken, the history decides.
    async fn make(
        &self,
        run: &RunId,
        shared: &Arc<Mutex<RunState>>,
        id: PartId,
        job: &Job,
        claim: &ClaimGuard,
    ) -> Result<Option<(u32, Ended)>> {
        let mut is_new = shared.lock().await.job(id, 0).offer == job.offer;
        // Each further round means that one more attempt is on record, so the loop ends.
        loop {
            let taken = match is_new {
                true => Some(0),
                false => self.history(run, shared, id).await?,
            };
            let Some(taken) = taken else {
                return Ok(None);
            };
            let Some((own, part)) = self.prepare(shared, id).await? else {
                return Ok(None);
            };
            match self.attempt(shared, claim, own, part, taken).await? {
                (_, Ended::Taken) => is_new = false,
                ended => return Ok(Some(ended)),
            }
        }
    }

    /// The highest attempt number; `None` if the part is committed or may not be tried again.
    async fn history(
        &self,
        run: &RunId,
        shared: &Arc<Mutex<RunState>>,
        id: PartId,
    ) -> Result<Option<u32>> {
        let mut state = shared.lock().await;
        if state.manifest(id).await?.is_some() {
            drop(state);
            self.plan_after(shared, id).await?;
            return Ok(None);
        }
        let attempts = self.options.store.attempts(&state.slot(id)).await?;
        if let Some(message) = state.exhausted(id, &attempts) {
            self.stop_run(run, message, Cause::Part);
            return Ok(None);
        }
        Ok(Some(attempts.last().map_or(0, |last| last.number)))
    }

    /// The view and the part for an attempt, unless the part is known to be committed.
    async fn prepare(
        &self,
        shared: &Arc<Mutex<RunState>>,
        id: PartId,
    ) -> Result<Option<(RunState, Part)>> {
        let (mut own, part) = {
            let state = shared.lock().await;
            let planned = parts(&state.plan, id.iteration);
            let Some(part) = planned.into_iter().find(|p| p.id == id) else {
                return Ok(None);
            };
            // The attempt works on its own view, so that planning continues meanwhile.
            (state.view(), part)
        };
        for input in &part.inputs {
            own.manifest(input.from).await?;
        }
        let mut state = shared.lock().await;
        state.learn_from(&own);
        // Planning may have learned of a commit meanwhile.
        let known = state.progress.contains(&id);
        drop(state);
        Ok((!known).then_some((own, part)))
    }

    /// One attempt. Meanwhile the claim is renewed, and a hold of the run drains the attempt.
    async fn attempt(
        &self,
        shared: &Arc<Mutex<RunState>>,
        claim: &ClaimGuard,
        mut own: RunState,
        part: Part,
        taken: u32,
    ) -> Result<(u32, Ended)> {
        let id = part.id;
        let running = Running::of(&self.running, id);
        let making = self.options.meters.making(id.stage.name());
        let drain = self.drain.child_token();
        let bench = AttemptContext {
            store: &self.options.store,
            resources: &self.resources,
            functions: &*self.options.functions,
            worker: &self.options.name,
            machine: &self.options.machine,
            folders: &self.options.folders,
            events: &self.events,
            drain: &drain,
            health: &self.health,
            outage_max: self.options.exit_when_finished.then_some(TROUBLE_MAX),
        };
        let lease = Duration::from_secs(self.options.queue.options().lease_ttl_s);
        let mut hold = Hold {
            claim,
            told: None,
            is_given_back: false,
        };
        let ended = {
            let attempt = attempt::run(&bench, &mut own, part, taken);
            tokio::pin!(attempt);
            loop {
                tokio::select! {
                    biased;
                    ended = &mut attempt => break ended,
                    () = tokio::time::sleep(LOOK_EVERY.min(lease / 3)) => {
                        // A lost claim costs at most double work; the first commit wins.
                        if let Err(e) = self.hold(shared, id, &mut hold, taken).await {
                            self.options.meters.claim("not_renewed");
                            tracing::debug!(part = %id, "claim not renewed: {e}");
                        }
                        let mut state = shared.lock().await;
                        if let Err(e) = state.heed_plan(&self.options.queue).await {
                            tracing::debug!(part = %id, "the plan in force is not known: {e}");
                        }
                        if state.on_hold() {
                            drain.cancel();
                        }
                    }
                }
            }
        };
        drop((running, making));
        shared.lock().await.learn_from(&own);
        ended
    }

    /// Renews the claim of an attempt, or gives it back if the store fails this worker for too long:
    /// then another worker makes the part, while this one waits with what it has in hand. The first
    /// commit wins.
    async fn hold(
        &self,
        shared: &Arc<Mutex<RunState>>,
        id: PartId,
        hold: &mut Hold<'_>,
        taken: u32,
    ) -> Result<()> {
        if !self.health.is_waiting() {
            (hold.told, hold.is_given_back) = (None, false);
            hold.claim.renew().await?;
            return Ok(());
        }
        if hold.is_given_back {
            return Ok(());
        }
        let queue = &self.options.queue;
        let mut state = shared.lock().await;
        let first = state.first_iteration();
        let told = queue.told(state.plan.run.as_str(), first).await?.len();
        let others_commit = told > *hold.told.get_or_insert(told);
        if !self.health.gives_claim_back(others_commit) {
            hold.claim.renew().await?;
            return Ok(());
        }
        hold.is_given_back = true;
        hold.claim.give_back().await?;
        tracing::warn!(part = %id, "its claim is given back; another worker may make the part");
        let next = state.job(id, taken as usize + 1);
        state.push(queue, &next, Duration::ZERO).await
    }

    fn running(&self) -> std::sync::MutexGuard<'_, BTreeSet<PartId>> {
        held(&self.running)
    }
}

/// A claim that an attempt holds.
struct Hold<'a> {
    claim: &'a ClaimGuard,
    /// How many commits the queue told of when the store began to fail.
    told: Option<usize>,
    is_given_back: bool,
}

/// A part that this worker is making, for the lifetime of this value.
struct Running<'a> {
    parts: &'a std::sync::Mutex<BTreeSet<PartId>>,
    id: PartId,
}

impl<'a> Running<'a> {
    fn of(parts: &'a std::sync::Mutex<BTreeSet<PartId>>, id: PartId) -> Self {
        held(parts).insert(id);
        Self { parts, id }
    }
}

/// Runs on a panic too; otherwise the planner would not offer the part again.
impl Drop for Running<'_> {
    fn drop(&mut self) {
        held(self.parts).remove(&self.id);
    }
}

/// Locks a mutex. Its data is consistent even after a panic elsewhere, since each use is one call.
fn held<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// A claim that is not released expires by itself.
async fn release(claim: ClaimGuard) {
    if let Err(e) = claim.release().await {
        tracing::debug!("claim not released: {e}");
    }
}
