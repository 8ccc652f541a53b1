//! The queue in Redis, for many machines.
//!
//! apalis-redis keeps the jobs; leases are plain keys with a TTL. This module works around four
//! weaknesses of apalis-redis: a push wakes no worker, so a message is published; idempotency keys
//! are forgotten at once unless they have a TTL; the default response timeout of half a second ends
//! workers on a busy machine; and its own vacuum reads the whole queue at once.

use std::{
    sync::atomic::{AtomicBool, Ordering::SeqCst},
    time::Duration,
};

use ::redis::{AsyncCommands, Client, RedisError, RedisResult, Script, aio::ConnectionManager};
use agentgym_text::without_secrets;
use apalis_core::{
    backend::ext::{BackendExt, with_codec::WithCodec},
    task::builder::TaskBuilder,
};
use apalis_redis::{Config, RedisStorage, queries};
use async_trait::async_trait;
use futures::StreamExt;
use tokio::{
    sync::{Mutex, watch},
    time::{Instant, sleep, timeout},
};

mod connect;
mod scripts;

use self::connect::{CONNECT_TIMEOUT, advice, connect, is_refusal};
use self::scripts::{PRESENT, PURGE, RELEASE, RENEW, RETIRE};
use super::run::run_apalis;
use crate::{
    codec::{JobCodec, Payload},
    driver::{BOARD_RANKS, BOARD_TTL, Driver, PRESENCE_TTL, Worker, missed_heartbeats, since_1970},
    error::{Error, Result, Source, bad_url, failed},
    job::Enqueued,
    options::QueueOptions,
};

/// The one key of apalis without a prefix: the list of all its queues.
const APALIS_QUEUES: &str = "core:apalis:queues:list";

/// Covers pushes whose message was lost, and delayed jobs that become due.
const POLL_MS: u64 = 200;
/// A replica is not left more often than this.
const RECONNECT_EVERY: Duration = Duration::from_secs(1);
/// The TTL of a key while its job waits or runs. It limits the damage if Redis loses a job but
/// keeps its key.
const KEY_TTL: Duration = Duration::from_secs(24 * 3600);
/// Jobs deleted per script: Redis serves no other client meanwhile.
const PURGE_BATCH: usize = 500;

/// One server.
pub(crate) struct Redis {
    /// Without the password, for messages.
    url: String,
    client: Client,
    /// And when it was made.
    connection: Mutex<(ConnectionManager, Instant)>,
    /// The server has said that it is a replica. Behind the same address there may be another one
    /// by now, which only a new connection reaches.
    is_replica: AtomicBool,
    options: QueueOptions,
}

impl Redis {
    pub(crate) async fn open(url: &str, options: &QueueOptions) -> Result<Self> {
        if url.starts_with("rediss:") {
            // redis-rs panics if it has to choose among several providers. An error means that
            // another provider is already installed, which is enough.
            let _ = rustls::crypto::ring::default_provider().install_default();
        }
        let client = Client::open(url).map_err(|error| bad_url(url, error))?;
        let connection = connect(&client)
            .await
            .map_err(|source| match is_refusal(&source) {
                true => Self::refused(url, options, source),
                false => Error::Open {
                    url: without_secrets(url),
                    advice: advice(url, &source),
                    source: source.into(),
                },
            })?;
        let redis = Self {
            url: without_secrets(url),
            client,
            connection: Mutex::new((connection, Instant::now())),
            is_replica: AtomicBool::new(false),
            options: options.clone(),
        };
        if redis.is_cluster().await {
            return Err(Error::Cluster {
                url: without_secrets(url),
            });
        }
        match redis.try_rights().await {
            Err(refusal) if is_refusal(&refusal) => Err(Self::refused(url, options, refusal)),
            // A server that is full, loading or read-only recovers by itself.
            _ => Ok(redis),
        }
    }

    async fn connection(&self) -> ConnectionManager {
        let mut held = self.connection.lock().await;
        if held.1.elapsed() > RECONNECT_EVERY && self.is_replica.swap(false, SeqCst) {
            held.1 = Instant::now();
            match connect(&self.client).await {
                Ok(new) => held.0 = new,
                Err(error) => tracing::debug!("queue {}: cannot connect again: {error}", self.url),
            }
        }
        held.0.clone()
    }

    /// Like [`failed`]; also notices a replica.
    fn failed<E: Into<Source>>(&self, action: &'static str) -> impl FnOnce(E) -> Error {
        move |error| {
            let error = failed(&self.url, action)(error);
            // Through apalis only the server's text is left.
            let said = error.to_string().to_lowercase();
            if ["readonly", "read only replica"]
                .iter()
                .any(|text| said.contains(text))
            {
                self.is_replica.store(true, SeqCst);
            }
            error
        }
    }

    /// A cluster spreads the keys of one job over several servers, which scripts cannot use.
    async fn is_cluster(&self) -> bool {
        let mut ask = ::redis::cmd("INFO");
        let mut connection = self.connection().await;
        // Who may not ask learns of it from the rights below, or from the first job.
        let told = ask.arg("cluster").query_async(&mut connection).await;
        told.is_ok_and(|told: String| told.contains("cluster_enabled:1"))
    }

    /// Reads, writes, runs a script and publishes, all without effect: a missing password or
    /// permission should fail here, not in every job.
    async fn try_rights(&self) -> RedisResult<()> {
        let mut connection = self.connection().await;
        let _: Vec<String> = connection.smembers(self.named("lanes")).await?;
        let trial = self.named("trial");
        let _: u64 = connection.del(&trial).await?;
        let _: u64 = connection.exists(APALIS_QUEUES).await?;
        let script = Script::new("return redis.call('EXISTS', KEYS[1])");
        let _: u64 = script.key(&trial).invoke_async(&mut connection).await?;
        let _: u64 = connection.publish(self.named("trial"), "").await?;
        Ok(())
    }

    fn refused(url: &str, options: &QueueOptions, refusal: RedisError) -> Error {
        Error::Refused {
            url: without_secrets(url),
            prefix: options.name_prefix.clone(),
            source: refusal.into(),
        }
    }

    fn config(&self, lane: &str) -> Config {
        Config::default()
            .queue(format!("{}:{lane}", self.options.name_prefix))
            .heartbeat_interval(Duration::from_secs(self.options.heartbeat_s))
            .missed_heartbeats(missed_heartbeats(&self.options))
            // A larger batch would run jobs twice: jobs that wait in a batch have no slot and
            // outlive the lease.
            .batch_size(1)
            .idempotency_ttl(Some(KEY_TTL))
            .emit_events(false)
            // apalis' lock scripts fail and end the worker in cases where the in-flight set alone
            // would redeliver the job.
            .lock_tasks(false)
    }

    fn named(&self, name: &str) -> String {
        format!("{}:{name}", self.options.name_prefix)
    }

    /// Lanes that may hold a job.
    async fn lanes(&self) -> RedisResult<Vec<String>> {
        let mut connection = self.connection().await;
        let mut lanes: Vec<String> = connection.smembers(self.named("lanes")).await?;
        lanes.sort();
        Ok(lanes)
    }

    /// Sums the two counts that `pipe` returns for each lane.
    async fn summed(
        &self,
        lanes: Vec<String>,
        pipe: ::redis::Pipeline,
    ) -> RedisResult<Vec<(String, usize)>> {
        if lanes.is_empty() {
            return Ok(Vec::new());
        }
        let counts: Vec<usize> = pipe.query_async(&mut self.connection().await).await?;
        let sums = counts.chunks(2).map(|pair| pair.iter().sum());
        Ok(lanes.into_iter().zip(sums).collect())
    }

    /// Removes a lane without jobs; the names of its workers expire by TTL.
    async fn retire(&self, lane: &str, config: &Config) -> RedisResult<()> {
        Script::new(RETIRE)
            .key(self.named("lanes"))
            .key(config.job_data_hash())
            .key(config.workers_set())
            .arg(lane)
            .arg(KEY_TTL.as_secs())
            .invoke_async(&mut self.connection().await)
            .await
    }

    async fn wake_ups(&self) -> Result<impl futures::Stream<Item = ()>, Source> {
        let mut pubsub = timeout(CONNECT_TIMEOUT, self.client.get_async_pubsub()).await??;
        timeout(CONNECT_TIMEOUT, pubsub.subscribe(self.named("wake"))).await??;
        Ok(pubsub.into_on_message().map(|_| ()))
    }

    /// Worker names are new at each start, and apalis keeps a hash for each.
    async fn purge_workers(&self, config: &Config) -> RedisResult<()> {
        let mut connection = self.connection().await;
        let prefix = format!("{}:metadata:", config.workers_set());
        let keys: Vec<String> = {
            let mut scanner = self.connection().await;
            let mut keys = scanner.scan_match(format!("{prefix}*")).await?;
            let mut found = Vec::new();
            while let Some(key) = keys.next_item().await {
                found.push(key?);
            }
            found
        };
        for key in keys {
            let worker = key.strip_prefix(&prefix).unwrap_or_default();
            let seen: Option<f64> = connection.zscore(config.workers_set(), worker).await?;
            if seen.is_none() {
                let () = connection.del(&key).await?;
            }
        }
        Ok(())
    }
}

fn key_name(config: &Config, key: &str) -> String {
    format!("{}:{key}", config.idempotency_key_set())
}

#[async_trait]
impl Driver for Redis {
    fn poll_every(&self) -> Duration {
        Duration::from_millis(match self.options.poll_ms {
            0 => POLL_MS,
            poll_ms => poll_ms,
        })
    }

    async fn push(
        &self,
        lane: &str,
        payload: Vec<u8>,
        key: Option<&str>,
        delay: Duration,
    ) -> Result<Enqueued> {
        let config = self.config(lane);
        let mut connection = self.connection().await;
        let mut task = TaskBuilder::new(payload);
        if !delay.is_zero() {
            let at = since_1970() + delay;
            task = task.run_at_timestamp((at.as_millis() as u64).div_ceil(1000));
        }
        let pushed = async {
            if let Some(key) = key {
                let (known, active, scheduled): (bool, usize, usize) = ::redis::pipe()
                    .exists(key_name(&config, key))
                    .llen(config.active_jobs_list())
                    .zcard(config.scheduled_jobs_set())
                    .query_async(&mut connection)
                    .await?;
                if known {
                    return Ok(Enqueued::Duplicate);
                }
                if active + scheduled >= self.options.length_max {
                    return Ok(Enqueued::Full);
                }
                task = task.idempotency_key(key);
            }
            let (active, scheduled) =
                queries::push_tasks(&mut connection, &config, &[task.build()]).await?;
            if active + scheduled == 0 {
                return Ok(Enqueued::Duplicate);
            }
            let () = ::redis::pipe()
                .sadd(self.named("lanes"), lane)
                .ignore()
                .publish(self.named("wake"), lane)
                .ignore()
                .query_async(&mut connection)
                .await?;
            Ok(Enqueued::Pushed)
        };
        pushed.await.map_err(self.failed::<Source>("push a job"))
    }

    async fn due(&self) -> Result<Vec<(String, usize)>> {
        let due = async {
            let lanes = self.lanes().await?;
            let mut pipe = ::redis::pipe();
            for lane in &lanes {
                let config = self.config(lane);
                pipe.llen(config.active_jobs_list()).zcount(
                    config.scheduled_jobs_set(),
                    0,
                    since_1970().as_secs(),
                );
            }
            self.summed(lanes, pipe).await
        };
        due.await.map_err(self.failed("look for jobs"))
    }

    async fn depth(&self) -> Result<Vec<(String, usize)>> {
        let counted = async {
            let lanes = self.lanes().await?;
            let mut pipe = ::redis::pipe();
            for lane in &lanes {
                let config = self.config(lane);
                pipe.llen(config.active_jobs_list())
                    .zcard(config.scheduled_jobs_set());
            }
            let mut depth = self.summed(lanes, pipe).await?;
            depth.retain(|(_, waiting)| *waiting > 0);
            Ok::<_, RedisError>(depth)
        };
        counted.await.map_err(self.failed("count jobs"))
    }

    async fn lease(&self, name: &str, holder: &str, ttl: Duration) -> Result<Option<String>> {
        let name = self.named(name);
        let leased = async {
            let mut connection = self.connection().await;
            let (taken, other): (bool, Option<String>) = ::redis::pipe()
                .cmd("SET")
                .arg(&name)
                .arg(holder)
                .arg("NX")
                .arg("PX")
                .arg(ttl.as_millis().max(1) as u64)
                .get(&name)
                .query_async(&mut connection)
                .await?;
            Ok::<_, RedisError>((!taken).then(|| other.unwrap_or_default()))
        };
        leased.await.map_err(self.failed("take a lease"))
    }

    async fn holder(&self, name: &str) -> Result<Option<String>> {
        ::redis::cmd("GET")
            .arg(self.named(name))
            .query_async(&mut self.connection().await)
            .await
            .map_err(self.failed("read a lease"))
    }

    async fn renew(&self, name: &str, holder: &str, ttl: Duration) -> Result<bool> {
        Script::new(RENEW)
            .key(self.named(name))
            .arg(holder)
            .arg(ttl.as_millis().max(1) as u64)
            .invoke_async(&mut self.connection().await)
            .await
            .map_err(self.failed("renew a lease"))
    }

    async fn release(&self, name: &str, holder: &str) -> Result<()> {
        Script::new(RELEASE)
            .key(self.named(name))
            .arg(holder)
            .invoke_async::<u32>(&mut self.connection().await)
            .await
            .map_err(self.failed("release a lease"))?;
        Ok(())
    }

    async fn post(&self, board: &str, note: Option<(u32, &str)>, from: u32) -> Result<Vec<String>> {
        let board = self.named(&format!("board/{board}"));
        let mut pipe = ::redis::pipe();
        if let Some((rank, note)) = note {
            pipe.zadd(&board, note, rank)
                .ignore()
                .zrembyscore(&board, "-inf", i64::from(rank) - i64::from(BOARD_RANKS))
                .ignore()
                .expire(&board, BOARD_TTL.as_secs() as i64)
                .ignore();
        }
        let (notes,): (Vec<String>,) = pipe
            .zrangebyscore(&board, from, "+inf")
            .query_async(&mut self.connection().await)
            .await
            .map_err(self.failed("tell the fleet"))?;
        Ok(notes)
    }

    async fn note_presence(&self, worker: &str, is_here: bool) -> Result<()> {
        let present = self.named("present");
        let mut connection = self.connection().await;
        let noted = match is_here {
            true => {
                Script::new(PRESENT)
                    .key(present)
                    .arg(worker)
                    .arg(PRESENCE_TTL.as_secs())
                    .invoke_async::<()>(&mut connection)
                    .await
            }
            false => connection.zrem(present, worker).await,
        };
        noted.map_err(self.failed("note that a worker is alive"))
    }

    async fn last_noted(&self) -> Result<Vec<(String, Duration)>> {
        let ((now, _), noted): ((u64, u64), Vec<(String, u64)>) = ::redis::pipe()
            .cmd("TIME")
            .zrange_withscores(self.named("present"), 0, -1)
            .query_async(&mut self.connection().await)
            .await
            .map_err(self.failed("read which workers are alive"))?;
        let ago = |(worker, at)| (worker, Duration::from_secs(now.saturating_sub(at)));
        Ok(noted.into_iter().map(ago).collect())
    }

    async fn ended(&self, lane: &str, key: &str) -> Result<()> {
        let name = key_name(&self.config(lane), key);
        self.connection()
            .await
            .expire(name, self.options.lease_ttl_s as i64)
            .await
            .map_err(self.failed("let a key run out"))
    }

    async fn purge(&self) -> Result<usize> {
        let purged = async {
            let script = Script::new(PURGE);
            let mut purged = 0;
            for lane in self.lanes().await? {
                let config = self.config(&lane);
                for finished in [config.done_jobs_set(), config.dead_jobs_set()] {
                    loop {
                        let batch: usize = script
                            .key(&finished)
                            .key(config.job_data_hash())
                            .key(config.job_meta_hash())
                            .arg(PURGE_BATCH)
                            .invoke_async(&mut self.connection().await)
                            .await?;
                        purged += batch;
                        if batch < PURGE_BATCH {
                            break;
                        }
                    }
                }
                self.purge_workers(&config).await?;
                self.retire(&lane, &config).await?;
            }
            Ok::<_, RedisError>(purged)
        };
        purged.await.map_err(self.failed("delete old jobs"))
    }

    async fn run(&self, worker: Worker) -> Result<()> {
        let config = self.config(worker.lane_name());
        let storage: WithCodec<RedisStorage<Payload>, JobCodec> =
            RedisStorage::new(self.connection().await)
                .with_config(config)
                .with_codec(JobCodec);
        run_apalis!(storage, worker).map_err(self.failed("work"))
    }

    async fn listen(&self, pushed: &watch::Sender<()>) {
        loop {
            match self.wake_ups().await {
                Ok(wake_ups) => {
                    let mut wake_ups = std::pin::pin!(wake_ups);
                    while wake_ups.next().await.is_some() {
                        pushed.send_replace(());
                    }
                }
                Err(error) => tracing::debug!("queue {}: cannot listen: {error}", self.url),
            }
            sleep(Duration::from_secs(1)).await;
        }
    }
}
