//! Damaged and malicious bytes for the readers of every crate: real files with bits flipped, pieces
//! cut, repeated and exchanged, and numbers made extreme. Unit tests include this file by its path,
//! so that no crate depends on another one for it. A case depends only on its number.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Random numbers: SplitMix64 (Steele, Lea, Flood 2014).
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`; 0 if `end` is 0.
    fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }

    /// A random range within `length` bytes, short more often than long.
    fn piece(&mut self, length: usize) -> std::ops::Range<usize> {
        let start = self.below(length + 1);
        let most = (length - start).min(1 << self.below(12));
        start..start + self.below(most + 1)
    }
}

/// Values that replace counters, lengths and offsets.
const EXTREMES: [&str; 10] = [
    "0",
    "-1",
    "4294967295",
    "4294967296",
    "9223372036854775807",
    "18446744073709551615",
    "1e308",
    "-1e308",
    "1e-320",
    "99999999999999999999999999",
];

/// One of the files of a corpus, damaged in one to four ways.
pub(crate) fn mutated(case: u64, corpus: &[Vec<u8>]) -> Vec<u8> {
    let mut numbers = Numbers(case);
    let mut bytes = corpus[numbers.below(corpus.len())].clone();
    for _ in 0..=numbers.below(4) {
        damage(&mut bytes, corpus, &mut numbers);
    }
    bytes
}

fn damage(bytes: &mut Vec<u8>, corpus: &[Vec<u8>], numbers: &mut Numbers) {
    let length = bytes.len();
    match numbers.below(8) {
        0 if length > 0 => bytes[numbers.below(length)] ^= 1 << numbers.below(8),
        1 => bytes.truncate(numbers.below(length + 1)),
        2 => {
            let (piece, at) = (numbers.piece(length), numbers.below(length + 1));
            let copy = bytes[piece].to_vec();
            bytes.splice(at..at, copy);
        }
        3 => {
            let other = &corpus[numbers.below(corpus.len())];
            let (from, to) = (numbers.piece(other.len()), numbers.piece(length));
            bytes.splice(to, other[from].iter().copied());
        }
        4 | 5 => inflate(bytes, numbers),
        6 if length >= 8 => {
            // Overwrites a binary length or offset.
            let width = [1, 2, 4, 8][numbers.below(4)];
            let at = numbers.below(length - width + 1);
            let value = [u64::MAX, i64::MAX as u64, 1 << 32, 0][numbers.below(4)];
            bytes[at..at + width].copy_from_slice(&value.to_le_bytes()[..width]);
        }
        _ => {
            let (to, count) = (numbers.piece(length), numbers.below(16));
            let random: Vec<u8> = (0..count).map(|_| numbers.next() as u8).collect();
            bytes.splice(to, random);
        }
    }
}

/// Replaces a number in the text by an extreme one.
fn inflate(bytes: &mut Vec<u8>, numbers: &mut Numbers) {
    let starts: Vec<usize> = (0..bytes.len())
        .filter(|&at| bytes[at].is_ascii_digit() && (at == 0 || !bytes[at - 1].is_ascii_digit()))
        .collect();
    if starts.is_empty() {
        return;
    }
    let start = starts[numbers.below(starts.len())];
    let digits = bytes[start..].iter().take_while(|b| b.is_ascii_digit());
    let end = start + digits.count();
    let extreme = EXTREMES[numbers.below(EXTREMES.len())];
    bytes.splice(start..end, extreme.bytes());
}

/// Calls a reader with every file of a corpus, with `cases` damaged versions and with some random
/// bytes. It may return an error, but must not panic or allocate more than `bytes_max`.
///
/// # Panics
/// If the reader does one of these; the message names the case.
pub(crate) fn survives(
    what: &str,
    corpus: &[Vec<u8>],
    cases: u64,
    bytes_max: usize,
    mut reader: impl FnMut(&[u8]),
) {
    let whole = corpus
        .iter()
        .map(|bytes| ("corpus".to_owned(), bytes.clone()));
    let damaged = (0..cases).map(|case| (format!("case {case}"), mutated(case, corpus)));
    let chance = (0..cases / 8).map(|case| {
        let mut numbers = Numbers(case ^ u64::MAX);
        let count = numbers.below(300);
        let bytes = (0..count).map(|_| numbers.next() as u8).collect();
        (format!("chance {case}"), bytes)
    });
    for (case, bytes) in whole.chain(damaged).chain(chance) {
        let (ended, peak) = peak(|| catch_unwind(AssertUnwindSafe(|| reader(&bytes))));
        let shown = || String::from_utf8_lossy(&bytes[..bytes.len().min(2000)]).into_owned();
        assert!(ended.is_ok(), "{what}, {case}: panicked at {}", shown());
        assert!(
            peak <= bytes_max,
            "{what}, {case}: {peak} bytes of memory for {}",
            shown()
        );
    }
}

/// An allocator that counts the bytes that each thread holds.
pub(crate) struct Counting;

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
    static MOST: Cell<isize> = const { Cell::new(0) };
}

/// The most memory that a call holds, not counting what was allocated before it.
fn peak<T>(call: impl FnOnce() -> T) -> (T, usize) {
    let before = HELD.get();
    MOST.set(before);
    let result = call();
    (result, usize::try_from(MOST.get() - before).unwrap_or(0))
}

fn held(change: isize) {
    // A thread that ends frees memory after its thread-local variables are destroyed.
    let _ = HELD.try_with(|held| {
        held.set(held.get() + change);
        let _ = MOST.try_with(|most| most.set(most.get().max(held.get())));
    });
}

// SAFETY: every call is passed unchanged to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        held(layout.size() as isize);
        // SAFETY: the caller guarantees what the system's allocator requires.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        held(-(layout.size() as isize));
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        held(layout.size() as isize);
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        held(size as isize - layout.size() as isize);
        // SAFETY: as above.
        unsafe { System.realloc(at, layout, size) }
    }
}
