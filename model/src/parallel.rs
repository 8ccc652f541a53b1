//! Work on several threads whose results do not depend on their number: each item
//! is computed alone by one thread, and results are in item order.

use crate::Result;
use rayon::iter::{IntoParallelIterator, ParallelIterator};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// How a computation may use the machine; none of it changes a result.
#[derive(Clone, Copy)]
pub struct ComputeOptions<'a> {
    /// Threads to use; at least one is used.
    pub threads: usize,
    /// Tokens that one forward pass of scoring takes together.
    pub pack_tokens: usize,
    /// Gradient checkpointing: training keeps only each layer's input and recomputes the
    /// layer in the backward pass: a third more work for a fraction of the memory.
    pub checkpointed: bool,
    /// Bytes of memory that the machine has.
    pub memory: u64,
    /// Called after every piece of work, as a sign of life.
    pub beat: &'a (dyn Fn() + Sync),
}

impl Default for ComputeOptions<'_> {
    fn default() -> Self {
        ComputeOptions {
            threads: 1,
            pack_tokens: 1024,
            checkpointed: false,
            memory: u64::MAX,
            beat: &|| (),
        }
    }
}

impl std::fmt::Debug for ComputeOptions<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ComputeOptions")
            .field("threads", &self.threads)
            .field("pack_tokens", &self.pack_tokens)
            .field("checkpointed", &self.checkpointed)
            .finish_non_exhaustive()
    }
}

/// The results of `work(0)` … `work(count - 1)`, started in this order. Of several
/// errors the one of the lowest item is returned.
pub(crate) fn map<T: Send>(
    options: &ComputeOptions<'_>,
    count: usize,
    work: impl Fn(usize) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    let next = AtomicUsize::new(0);
    let failed = AtomicBool::new(false);
    let done = Mutex::new(Vec::with_capacity(count));
    let run = || {
        while !failed.load(Ordering::Relaxed) {
            let item = next.fetch_add(1, Ordering::Relaxed);
            if item >= count {
                break;
            }
            let result = work(item);
            if result.is_err() {
                failed.store(true, Ordering::Relaxed);
            }
            done.lock()
                .expect("no thread panics while it holds this")
                .push((item, result));
            (options.beat)();
        }
    };
    std::thread::scope(|scope| {
        let others = 1..options.threads.min(count);
        let others: Vec<_> = others.map(|_| scope.spawn(run)).collect();
        run();
        for other in others {
            if let Err(panic) = other.join() {
                // Keeps its message: a scope would only say that a thread panicked.
                std::panic::resume_unwind(panic);
            }
        }
    });
    let mut done = done
        .into_inner()
        .expect("no thread panics while it holds this");
    done.sort_unstable_by_key(|(item, _)| *item);
    done.into_iter().map(|(_, result)| result).collect()
}

/// [`map`] of large items. Those of the last round, where they are fewer than the threads, share the
/// threads: each has a team that divides its larger parts.
pub(crate) fn map_large<T: Send>(
    options: &ComputeOptions<'_>,
    count: usize,
    work: impl Fn(usize) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    let threads = options.threads.max(1);
    let rest = count % threads;
    let mut results = map(options, count - rest, &work)?;
    let team = |number| Team::new((number + 1) * threads / rest - number * threads / rest);
    let teams: Vec<Team> = (0..rest).map(team).collect();
    let first = results.len();
    results.extend(map(options, rest, |number| {
        teams[number].run(|| work(first + number))
    })?);
    Ok(results)
}

/// Threads among which one computation divides its larger parts.
#[derive(Debug)]
pub(crate) struct Team(Option<rayon::ThreadPool>);

impl Team {
    /// A team of `threads`, or of the calling thread alone where the system has no more.
    pub(crate) fn new(threads: usize) -> Self {
        let pool = || {
            let builder = rayon::ThreadPoolBuilder::new().num_threads(threads);
            builder
                .thread_name(|number| format!("team-{number}"))
                .build()
                .ok()
        };
        Team((threads > 1).then(pool).flatten())
    }

    /// Runs `work`, which [`divided`] divides, in the team.
    pub(crate) fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        match &self.0 {
            Some(pool) => pool.install(work),
            None => work(),
        }
    }
}

/// Threads of the team in which the caller runs.
pub(crate) fn team() -> usize {
    rayon::current_thread_index().map_or(1, |_| rayon::current_num_threads())
}

/// The result of `work` for each item, computed by the caller's team.
pub(crate) fn divided<I: Send, T: Send>(
    items: Vec<I>,
    work: impl Fn(I) -> T + Sync + Send,
) -> Vec<T> {
    match team() {
        1 => items.into_iter().map(work).collect(),
        _ => items.into_par_iter().map(work).collect(),
    }
}
