//! The queue in one SQLite file, for the processes of one machine.
//!
//! apalis-sqlite keeps the jobs; two small tables beside its own keep leases and notes. The file
//! may be deleted at any time, even while workers run: every access first checks whether the path
//! still names the open file. If not, it opens a new file and closes the old one; apalis' workers
//! then end and are rebuilt on the new file.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use apalis_core::{
    backend::ext::{BackendExt, with_codec::WithCodec},
    task::builder::TaskBuilder,
};
use apalis_sqlite::{Config, SqliteStorage, queries};
use async_trait::async_trait;
use sqlx::{
    Row, SqlitePool,
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous},
};
use tokio::sync::{RwLock, watch};

use super::run::run_apalis;
use crate::{
    codec::{JobCodec, Payload},
    driver::{BOARD_RANKS, BOARD_TTL, Driver, Worker, missed_heartbeats, since_1970},
    error::{Error, Result, Source, bad_url, failed},
    holder::is_gone,
    job::Enqueued,
    options::QueueOptions,
};

/// One look is one indexed read.
const POLL_MS: u64 = 20;
/// Writers in other processes hold the file for milliseconds; on a disk that hangs, for seconds.
const BUSY_TIMEOUT: Duration = Duration::from_secs(20);
/// Two processes that create the same file at once can make each other fail.
const OPEN_TRIES: u32 = 5;

const LEASES: &str = "CREATE TABLE IF NOT EXISTS agentgym_leases (
    name TEXT PRIMARY KEY, holder TEXT NOT NULL, until_ms INTEGER NOT NULL) WITHOUT ROWID";

const NOTES: &str = "CREATE TABLE IF NOT EXISTS agentgym_notes (
    board TEXT NOT NULL, rank INTEGER NOT NULL, note TEXT NOT NULL, at_ms INTEGER NOT NULL,
    PRIMARY KEY (board, rank, note)) WITHOUT ROWID";

const ADVICE: &str = "Check that the folder exists, can be written and is on a local disk \
    (SQLite's locks do not work on network file systems); the file itself may be deleted at any \
    time";

/// One file, or an in-memory database when there is no path.
pub(crate) struct Sqlite {
    url: String,
    path: Option<PathBuf>,
    options: QueueOptions,
    open: RwLock<Open>,
}

struct Open {
    pool: SqlitePool,
    file: Option<FileId>,
}

/// Distinguishes a file from another one created at the same path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileId(u64, u64);

impl FileId {
    #[cfg(unix)]
    fn of(path: &Path) -> Option<Self> {
        use std::os::unix::fs::MetadataExt;
        let metadata = std::fs::metadata(path).ok()?;
        Some(Self(metadata.dev(), metadata.ino()))
    }

    /// On other platforms an open file cannot be deleted.
    #[cfg(not(unix))]
    fn of(path: &Path) -> Option<Self> {
        path.exists().then_some(Self(0, 0))
    }
}

impl Sqlite {
    pub(crate) async fn open(url: &str, options: &QueueOptions) -> Result<Self> {
        let path = match url {
            "memory:" | "sqlite::memory:" => None,
            _ => {
                let path = url.strip_prefix("sqlite:").unwrap_or_default();
                let path = path.strip_prefix("//").unwrap_or(path);
                if path.is_empty() {
                    return Err(bad_url(url, "it names no file"));
                }
                Some(PathBuf::from(path))
            }
        };
        let open = Open::new(path.as_deref())
            .await
            .map_err(|source| Error::Open {
                url: url.to_owned(),
                advice: ADVICE,
                source,
            })?;
        Ok(Self {
            url: url.to_owned(),
            path,
            options: options.clone(),
            open: RwLock::new(open),
        })
    }

    /// The pool of the file at the path.
    async fn pool(&self) -> Result<SqlitePool> {
        let Some(path) = &self.path else {
            return Ok(self.open.read().await.pool.clone());
        };
        {
            let open = self.open.read().await;
            if open.file == FileId::of(path) {
                return Ok(open.pool.clone());
            }
        }
        let mut open = self.open.write().await;
        if open.file != FileId::of(path) {
            tracing::warn!(
                "the queue {} was deleted or replaced; starting with a new file. The planner \
                 fills it again",
                self.url
            );
            let new = Open::new(Some(path))
                .await
                .map_err(failed(&self.url, "open the file again"))?;
            let old = std::mem::replace(&mut *open, new);
            // `close` waits for connections in use, possibly the caller's, so it runs in its own
            // task.
            tokio::spawn(async move { old.pool.close().await });
        }
        Ok(open.pool.clone())
    }

    fn queue(&self, lane: &str) -> String {
        format!("{}:{lane}", self.options.name_prefix)
    }

    /// The lanes of this fleet, each with a count.
    fn lanes(&self, rows: &[sqlx::sqlite::SqliteRow]) -> Vec<(String, usize)> {
        let prefix = self.queue("");
        let lane = |row: &sqlx::sqlite::SqliteRow| {
            let lane = row.get::<String, _>(0).strip_prefix(&prefix)?.to_owned();
            Some((lane, row.get::<i64, _>(1) as usize))
        };
        rows.iter().filter_map(lane).collect()
    }

    fn lease_name(&self, name: &str) -> String {
        format!("{}:{name}", self.options.name_prefix)
    }

    /// Finished jobs block their keys until they are older than this.
    fn done_before_s(&self) -> i64 {
        now_s() - self.options.lease_ttl_s as i64
    }
}

impl Open {
    async fn new(path: Option<&Path>) -> Result<Self, Source> {
        let connect = SqliteConnectOptions::new().busy_timeout(BUSY_TIMEOUT);
        // A queue is a hint, so a power failure may lose its last second; with apalis' own settings
        // it could corrupt the file.
        let (connect, pool) = match path {
            Some(path) => (
                connect
                    .filename(path)
                    .create_if_missing(true)
                    .journal_mode(SqliteJournalMode::Wal)
                    .synchronous(SqliteSynchronous::Normal),
                SqlitePoolOptions::new().max_connections(4),
            ),
            // The database exists only in its one connection, which must never be closed.
            None => (
                connect.in_memory(true),
                SqlitePoolOptions::new()
                    .max_connections(1)
                    .idle_timeout(None)
                    .max_lifetime(None),
            ),
        };
        let mut tries = 0;
        let pool = loop {
            tries += 1;
            match Self::connect(connect.clone(), pool.clone()).await {
                Ok(pool) => break pool,
                Err(source) if tries == OPEN_TRIES => return Err(source),
                Err(_) => tokio::time::sleep(Duration::from_millis(20 << tries)).await,
            }
        };
        Ok(Self {
            pool,
            file: path.and_then(FileId::of),
        })
    }

    async fn connect(
        connect: SqliteConnectOptions,
        pool: SqlitePoolOptions,
    ) -> Result<SqlitePool, Source> {
        let pool = pool.connect_with(connect).await?;
        SqliteStorage::migrations().run(&pool).await?;
        sqlx::query(LEASES).execute(&pool).await?;
        sqlx::query(NOTES).execute(&pool).await?;
        Ok(pool)
    }
}

fn now_ms() -> i64 {
    since_1970().as_millis() as i64
}

fn now_s() -> i64 {
    now_ms() / 1000
}

#[async_trait]
impl Driver for Sqlite {
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
        let queue = self.queue(lane);
        let pool = self.pool().await?;
        let pushed = async {
            let mut connection = pool.acquire().await?;
            let mut task = TaskBuilder::new(payload);
            if !delay.is_zero() {
                task = task
                    .run_at_timestamp((now_ms() as u64 + delay.as_millis() as u64).div_ceil(1000));
            }
            if let Some(key) = key {
                sqlx::query(
                    "DELETE FROM Jobs WHERE job_type = ?1 AND idempotency_key = ?2
                     AND status = 'Done' AND done_at <= ?3",
                )
                .bind(&queue)
                .bind(key)
                .bind(self.done_before_s())
                .execute(&mut *connection)
                .await?;
                let known: Option<Option<String>> = sqlx::query_scalar(
                    "SELECT lock_by FROM Jobs WHERE job_type = ?1 AND idempotency_key = ?2",
                )
                .bind(&queue)
                .bind(key)
                .fetch_optional(&mut *connection)
                .await?;
                match known {
                    None => {}
                    // Its worker was killed before it began an attempt.
                    Some(Some(worker)) if is_gone(&worker) => {
                        sqlx::query(
                            "DELETE FROM Jobs WHERE job_type = ?1 AND idempotency_key = ?2
                             AND lock_by = ?3 AND done_at IS NULL",
                        )
                        .bind(&queue)
                        .bind(key)
                        .bind(&worker)
                        .execute(&mut *connection)
                        .await?;
                    }
                    Some(_) => return Ok(Enqueued::Duplicate),
                }
                let waiting: i64 = sqlx::query_scalar(
                    "SELECT COUNT(*) FROM Jobs WHERE job_type = ?1 AND status = 'Pending'",
                )
                .bind(&queue)
                .fetch_one(&mut *connection)
                .await?;
                if waiting >= self.options.length_max as i64 {
                    return Ok(Enqueued::Full);
                }
                task = task.idempotency_key(key);
            }
            queries::push_tasks(&mut *connection, &queue, &[task.build()]).await?;
            // apalis does not report whether its INSERT hit an existing key.
            let inserted: i64 = sqlx::query_scalar("SELECT changes()")
                .fetch_one(&mut *connection)
                .await?;
            Ok(match inserted {
                0 => Enqueued::Duplicate,
                _ => Enqueued::Pushed,
            })
        };
        pushed
            .await
            .map_err(failed::<Source>(&self.url, "push a job"))
    }

    async fn due(&self) -> Result<Vec<(String, usize)>> {
        let rows = sqlx::query(
            "SELECT job_type, SUM(status = 'Pending' AND lock_by IS NULL AND run_at <= ?1)
             FROM Jobs WHERE status IN ('Pending', 'Queued', 'Running')
             GROUP BY job_type ORDER BY job_type",
        )
        .bind(now_s())
        .fetch_all(&self.pool().await?)
        .await
        .map_err(failed(&self.url, "look for jobs"))?;
        Ok(self.lanes(&rows))
    }

    async fn depth(&self) -> Result<Vec<(String, usize)>> {
        let rows = sqlx::query(
            "SELECT job_type, COUNT(*) FROM Jobs WHERE status = 'Pending'
             GROUP BY job_type ORDER BY job_type",
        )
        .fetch_all(&self.pool().await?)
        .await
        .map_err(failed(&self.url, "count jobs"))?;
        Ok(self.lanes(&rows))
    }

    async fn lease(&self, name: &str, holder: &str, ttl: Duration) -> Result<Option<String>> {
        let taken = async {
            let pool = self.pool().await?;
            let now = now_ms();
            let taken = sqlx::query(
                "INSERT INTO agentgym_leases VALUES (?1, ?2, ?3)
                 ON CONFLICT (name) DO UPDATE SET holder = ?2, until_ms = ?3
                 WHERE until_ms <= ?4",
            )
            .bind(self.lease_name(name))
            .bind(holder)
            .bind(now + ttl.as_millis() as i64)
            .bind(now)
            .execute(&pool)
            .await
            .map_err(failed(&self.url, "take a lease"))?;
            if taken.rows_affected() == 1 {
                return Ok(None);
            }
            let other: Option<String> =
                sqlx::query_scalar("SELECT holder FROM agentgym_leases WHERE name = ?1")
                    .bind(self.lease_name(name))
                    .fetch_optional(&pool)
                    .await
                    .map_err(failed(&self.url, "read a lease"))?;
            Ok(Some(other.unwrap_or_default()))
        };
        taken.await
    }

    async fn holder(&self, name: &str) -> Result<Option<String>> {
        let pool = self.pool().await?;
        sqlx::query_scalar("SELECT holder FROM agentgym_leases WHERE name = ?1 AND until_ms > ?2")
            .bind(self.lease_name(name))
            .bind(now_ms())
            .fetch_optional(&pool)
            .await
            .map_err(failed(&self.url, "read a lease"))
    }

    async fn renew(&self, name: &str, holder: &str, ttl: Duration) -> Result<bool> {
        // An expired lease may be renewed as long as no other holder took it.
        let renewed =
            sqlx::query("UPDATE agentgym_leases SET until_ms = ?3 WHERE name = ?1 AND holder = ?2")
                .bind(self.lease_name(name))
                .bind(holder)
                .bind(now_ms() + ttl.as_millis() as i64)
                .execute(&self.pool().await?)
                .await
                .map_err(failed(&self.url, "renew a lease"))?;
        Ok(renewed.rows_affected() == 1)
    }

    async fn release(&self, name: &str, holder: &str) -> Result<()> {
        sqlx::query("DELETE FROM agentgym_leases WHERE name = ?1 AND holder = ?2")
            .bind(self.lease_name(name))
            .bind(holder)
            .execute(&self.pool().await?)
            .await
            .map_err(failed(&self.url, "release a lease"))?;
        Ok(())
    }

    async fn post(&self, board: &str, note: Option<(u32, &str)>, from: u32) -> Result<Vec<String>> {
        let pool = self.pool().await?;
        let board = self.lease_name(board);
        let posted = async {
            if let Some((rank, note)) = note {
                sqlx::query("INSERT OR IGNORE INTO agentgym_notes VALUES (?1, ?2, ?3, ?4)")
                    .bind(&board)
                    .bind(rank)
                    .bind(note)
                    .bind(now_ms())
                    .execute(&pool)
                    .await?;
            }
            sqlx::query_scalar(
                "SELECT note FROM agentgym_notes WHERE board = ?1 AND rank >= ?2 ORDER BY rank, note",
            )
            .bind(&board)
            .bind(from)
            .fetch_all(&pool)
            .await
        };
        posted.await.map_err(failed(&self.url, "tell the fleet"))
    }

    /// The row records when it was done; [`Driver::push`] reads that.
    async fn ended(&self, _: &str, _: &str) -> Result<()> {
        Ok(())
    }

    /// No VACUUM: it locks the file for a long time, and free pages are reused.
    async fn purge(&self) -> Result<usize> {
        let pool = self.pool().await?;
        let purged = async {
            let jobs = sqlx::query(
                "DELETE FROM Jobs WHERE status IN ('Done', 'Failed', 'Killed') AND done_at <= ?1",
            )
            .bind(self.done_before_s())
            .execute(&pool)
            .await?;
            // Ten leases: everything that a dead worker held was handed on long before.
            sqlx::query(
                "DELETE FROM Workers WHERE last_seen <= ?1
                 AND NOT EXISTS (SELECT 1 FROM Jobs WHERE Jobs.lock_by = Workers.id)",
            )
            .bind(now_s() - 10 * self.options.lease_ttl_s as i64)
            .execute(&pool)
            .await?;
            sqlx::query("DELETE FROM agentgym_leases WHERE until_ms <= ?1")
                .bind(now_ms() - 10_000 * self.options.lease_ttl_s as i64)
                .execute(&pool)
                .await?;
            sqlx::query(
                "DELETE FROM agentgym_notes WHERE at_ms <= ?1 OR rank < ?2 +
                 (SELECT MAX(rank) FROM agentgym_notes AS other WHERE other.board = agentgym_notes.board)",
            )
            .bind(now_ms() - BOARD_TTL.as_millis() as i64)
            .bind(-i64::from(BOARD_RANKS))
            .execute(&pool)
            .await?;
            Ok::<_, sqlx::Error>(jobs.rows_affected() as usize)
        };
        purged.await.map_err(failed(&self.url, "delete old jobs"))
    }

    async fn run(&self, worker: Worker) -> Result<()> {
        let config = Config::default()
            .queue(self.queue(worker.lane_name()))
            .heartbeat_interval(Duration::from_secs(self.options.heartbeat_s))
            .missed_heartbeats(missed_heartbeats(&self.options))
            // A larger batch would run jobs twice: jobs that wait in a batch have no slot and
            // outlive the lease.
            .batch_size(1)
            // "Queued" is redelivered like "Running", so marking a job as running is not worth a
            // write.
            .lock_tasks(false);
        let storage: WithCodec<SqliteStorage<Payload>, JobCodec> =
            SqliteStorage::new(&self.pool().await?)
                .with_config(config)
                .with_codec(JobCodec);
        run_apalis!(storage, worker).map_err(failed(&self.url, "work"))
    }

    /// SQLite has no notifications between processes; the scout's polling has to do.
    async fn listen(&self, _: &watch::Sender<()>) {
        std::future::pending().await
    }
}
