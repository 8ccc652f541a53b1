//! How far a long read has come, for a page that waits for it.

use serde::Serialize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The reads under way in a run.
#[derive(Debug, Default, Clone)]
pub(super) struct Reading(Arc<Mutex<Vec<Read>>>);

#[derive(Debug)]
struct Read {
    number: u64,
    what: &'static str,
    done: usize,
    of: usize,
}

/// A read under way; it ends when this is dropped.
#[derive(Debug)]
pub(super) struct UnderWay {
    all: Reading,
    number: u64,
}

impl Reading {
    fn all(&self) -> MutexGuard<'_, Vec<Read>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A read of so many things begins.
    pub(super) fn begin(&self, what: &'static str, of: usize) -> UnderWay {
        let mut all = self.all();
        let number = all.iter().map(|read| read.number + 1).max().unwrap_or(0);
        all.push(Read {
            number,
            what,
            done: 0,
            of,
        });
        UnderWay {
            all: self.clone(),
            number,
        }
    }

    /// The read that has the most before it, if there is one.
    pub(super) fn longest(&self) -> Option<Progress> {
        let all = self.all();
        let longest = all
            .iter()
            .max_by_key(|read| read.of - read.done.min(read.of));
        longest.map(|read| Progress {
            what: read.what,
            done: read.done,
            of: read.of,
        })
    }
}

/// How far a read has come.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Progress {
    what: &'static str,
    done: usize,
    of: usize,
}

impl UnderWay {
    /// One more is read.
    pub(super) fn step(&self) {
        let mut all = self.all.all();
        if let Some(read) = all.iter_mut().find(|read| read.number == self.number) {
            read.done += 1;
        }
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.all.all().retain(|read| read.number != self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_read_that_lasts_longest_is_told_until_it_ends() {
        let reading = Reading::default();
        assert_eq!(reading.longest(), None);
        let short = reading.begin("commits", 3);
        let long = reading.begin("parts", 9);
        short.step();
        long.step();
        long.step();
        let (what, done, of) = ("parts", 2, 9);
        assert_eq!(reading.longest(), Some(Progress { what, done, of }));
        drop(long);
        assert_eq!(reading.longest().unwrap().what, "commits");
        drop(short);
        assert_eq!(reading.longest(), None);
    }
}
