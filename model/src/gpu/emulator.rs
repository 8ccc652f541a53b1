//! A GPU emulated on the CPU, for tests: kernels compiled by the host's C++ compiler, and
//! memory with guards around every allocation. Fresh memory is all NaN, so that reads before the
//! first write show; a launch whose arguments do not fit the kernel's parameters is refused.

use std::borrow::Cow;
use std::collections::{BTreeMap, VecDeque};
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use libloading::Library;

mod copies;

use self::copies::{Copies, HALF_BYTES};
use super::backend::{Argument, Backend, Element as _, Gpu, Launch, Operand, Product, TILE};
use super::kernels;
use super::staging::Ring;
use super::tiles::SHARED_MAX;
use crate::kernels::matmul::{View, matmul};
use crate::{Dtype, Error, Result};

/// Guard bytes before and after every allocation, which must never be written.
const GUARD: usize = 64;
const GUARD_BYTE: u8 = 0xA5;

/// The content of memory before the first write: as a float it is NaN.
const FRESH_BYTE: u8 = 0xFF;

/// Freed allocations that are checked for late writes.
const FREED: usize = 32;

type Entry = unsafe extern "C" fn(
    *mut *mut c_void,
    *const c_char,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
) -> c_int;

/// The order in which the threads of a block run, and the blocks one after another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    Ascending,
    /// Drawn anew for each launch's blocks, and for the threads between two barriers; from
    /// `AGENTGYM_EMULATOR_SEED`, 1 by default.
    Shuffled,
}

impl Order {
    /// Zero for the ascending one.
    fn seed(self) -> u32 {
        let given = || std::env::var("AGENTGYM_EMULATOR_SEED").ok();
        match self {
            Order::Ascending => 0,
            Order::Shuffled => given().map_or(1, |seed| seed.parse().expect("a number")),
        }
    }
}

#[derive(Debug)]
pub(crate) struct Emulator {
    order: Order,
    dtype: Dtype,
    ring: Mutex<Ring>,
    copies: Mutex<Copies>,
    /// Allocations by address, guards included.
    memory: Mutex<BTreeMap<u64, Box<[u8]>>>,
    /// The last freed allocations, all NaN, so that reads and writes of them show.
    freed: Mutex<VecDeque<Box<[u8]>>>,
    /// The recording in progress.
    recording: Mutex<Option<Recorded>>,
    recorded: Mutex<BTreeMap<u64, Arc<Recorded>>>,
    limits: Arc<Limits>,
}

/// The recorded calls, and the memory that they allocated and freed.
#[derive(Debug, Default)]
struct Recorded {
    asked: Vec<Asked>,
    held: Vec<u64>,
    freed: Vec<u64>,
}

#[derive(Debug)]
enum Asked {
    Zero(u64, usize),
    Copy(u64, u64, usize),
    Launch {
        kernel: &'static str,
        grid: (usize, usize),
        block: u32,
        shared: usize,
        arguments: Vec<Argument>,
    },
    Multiply(Product),
}

/// Faults that an emulated device is to have, and counters.
#[derive(Debug)]
pub(crate) struct Limits {
    /// Memory of the device in bytes, without guards.
    pub(crate) bytes: AtomicUsize,
    /// Launches until the device is lost.
    pub(crate) launches: AtomicUsize,
    /// Recordings until recording fails.
    pub(crate) recordings: AtomicUsize,
    /// Most bytes allocated at a time.
    pub(crate) peak: AtomicUsize,
    /// Allocations refused.
    pub(crate) refused: AtomicUsize,
}

impl Default for Limits {
    fn default() -> Self {
        let [bytes, launches, recordings] = [const { AtomicUsize::new(usize::MAX) }; 3];
        Limits {
            bytes,
            launches,
            recordings,
            peak: AtomicUsize::new(0),
            refused: AtomicUsize::new(0),
        }
    }
}

/// An emulated GPU that runs threads in `order`.
pub(crate) fn emulated(order: Order, dtype: Dtype) -> Gpu {
    limited(order, dtype, Arc::default())
}

/// The same with limits, which may be changed while it computes.
pub(crate) fn limited(order: Order, dtype: Dtype, limits: Arc<Limits>) -> Gpu {
    Gpu::new(Emulator::new(order, dtype, limits))
}

/// The kernels, compiled once per process and type of operands.
fn library(dtype: Dtype) -> &'static Library {
    static LIBRARIES: [OnceLock<Library>; Dtype::ALL.len()] = [const { OnceLock::new() }; 2];
    LIBRARIES[dtype as usize].get_or_init(|| {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let source = folder.path().join("kernels.cpp");
        let object = folder.path().join("kernels.so");
        let program = kernels::program(include_str!("emulator/device.h"), dtype);
        let faults = include_str!("emulator/faults.cu");
        let program = match std::env::var("AGENTGYM_EMULATOR_MUTANT") {
            Ok(mutant) => mutated(&program, &mutant),
            Err(_) => program,
        };
        let names = kernels::names_in(&program).chain(kernels::names_in(faults));
        let entries: String = names.map(|name| format!("EMULATE({name})\n")).collect();
        let text = format!("{program}\n{faults}\n{entries}");
        std::fs::write(&source, text).expect("a writable temporary folder");
        let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".to_owned());
        let mut command = Command::new(&compiler);
        if looks_at_accesses() {
            let runtime = folder.path().join("accesses.o");
            let accesses = folder.path().join("accesses.cpp");
            let text = include_str!("emulator/accesses.cpp");
            std::fs::write(&accesses, text).expect("a writable temporary folder");
            let mut build = Command::new(&compiler);
            build.args(["-std=c++17", "-O2", "-fPIC", "-c", "-o"]);
            let status = build.arg(&runtime).arg(&accesses).status();
            assert!(status.is_ok_and(|status| status.success()), "accesses.cpp");
            // Without the sanitizer's own library, which linking with its option would add.
            let compiled = folder.path().join("kernels.o");
            let mut build = Command::new(&compiler);
            build
                .args(COMPILING)
                .args(["-DACCESSES", "-w", "-fsanitize=thread", "-c", "-o"]);
            let status = build.arg(&compiled).arg(&source).status();
            assert!(status.is_ok_and(|status| status.success()), "kernels.cpp");
            command
                .args(["-shared", "-o"])
                .args([&object, &compiled, &runtime]);
        } else {
            command
                .args(COMPILING)
                .args(["-shared", "-o"])
                .args([&object, &source]);
        }
        let output = command
            .output()
            .unwrap_or_else(|e| panic!("the kernels' tests need a C++ compiler: {compiler}: {e}"));
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{complaint}");
        // SAFETY: the library was just built from this crate's kernels; loading runs none of them.
        unsafe { Library::new(&object) }.expect("the compiler made a library")
    })
}

/// Options of the compiler.
const COMPILING: [&str; 8] = [
    "-std=c++17",
    "-O2",
    // One-instruction multiply-adds, and only where the kernels contain them.
    "-march=native",
    "-ffp-contract=off",
    "-U_FORTIFY_SOURCE",
    "-Wall",
    "-fPIC",
    // A library's shared memory is its own, also where another has a variable of the same name.
    "-fno-gnu-unique",
];

/// Whether every load and store is looked at, which takes ten times as long.
fn looks_at_accesses() -> bool {
    std::env::var_os("AGENTGYM_EMULATOR_ACCESSES").is_some()
}

/// The program with a fault: `from => to`, once and for the occurrence with this number, as in
/// `3: __syncthreads(); =>`.
fn mutated(program: &str, mutant: &str) -> String {
    let (number, change) = mutant.split_once(": ").expect("a number");
    let (from, to) = change.split_once(" =>").expect("from => to");
    let number: usize = number.parse().expect("a number");
    let (at, _) = program.match_indices(from).nth(number).expect("it occurs");
    format!(
        "{}{}{}",
        &program[..at],
        to.trim_start(),
        &program[at + from.len()..]
    )
}

/// What every GPU allows of a launch.
fn is_allowed(launch: &Launch<'_>) -> bool {
    let (x, y) = launch.grid;
    // More shared memory is asked for the kernels of attention alone.
    let shared = match launch.kernel.starts_with("attend") {
        true => SHARED_MAX,
        false => 48 * 1024 / size_of::<f32>(),
    };
    launch.block <= 1024 && x < 1 << 31 && y < 1 << 16 && launch.shared <= shared
}

impl Emulator {
    pub(crate) fn new(order: Order, dtype: Dtype, limits: Arc<Limits>) -> Self {
        Emulator {
            order,
            dtype,
            ring: Mutex::new(Ring::new(HALF_BYTES)),
            copies: Mutex::default(),
            memory: Mutex::default(),
            freed: Mutex::default(),
            recording: Mutex::default(),
            recorded: Mutex::default(),
            limits,
        }
    }

    fn memory(&self) -> MutexGuard<'_, BTreeMap<u64, Box<[u8]>>> {
        self.memory.lock().expect("no thread panics holding this")
    }

    /// Bytes of all allocations.
    fn held(&self) -> usize {
        let memory = self.memory();
        memory.values().map(|held| held.len() - 2 * GUARD).sum()
    }

    /// Records the call if a recording is in progress; returns whether one is.
    fn record(&self, asked: Asked) -> bool {
        let mut recording = self.recording.lock().expect("no thread panics here");
        match &mut *recording {
            Some(recording) => recording.asked.push(asked),
            None => return false,
        }
        true
    }

    /// Refuses calls that cannot be recorded.
    fn not_recording(&self) -> Result<()> {
        match &*self.recording.lock().expect("no thread panics here") {
            Some(_) => Err(Self::wrong("a copy cannot be recorded".to_owned())),
            None => Ok(()),
        }
    }

    fn release(&self, address: u64) {
        // There is no caller to report a spoiled copy to; the next call reports it.
        let _ = self.settle();
        let freed = self.memory().remove(&address);
        let mut memory = freed.expect("memory is freed once");
        let end = memory.len() - GUARD;
        memory[GUARD..end].fill(FRESH_BYTE);
        let mut freed = self.freed.lock().expect("no thread panics here");
        freed.push_back(memory);
        if freed.len() > FREED {
            freed.pop_front();
        }
    }

    fn guards_hold(&self) -> bool {
        let memory = self.memory();
        memory.values().all(|bytes| {
            let (before, after) = (&bytes[..GUARD], &bytes[bytes.len() - GUARD..]);
            before.iter().chain(after).all(|&byte| byte == GUARD_BYTE)
        })
    }

    fn freed_memory_is_as_it_was(&self) -> bool {
        let freed = self.freed.lock().expect("no thread panics here");
        // In chunks, which the compiler turns into few instructions.
        let is_fresh =
            |run: &[u8]| run.iter().fold(FRESH_BYTE, |all, byte| all & byte) == FRESH_BYTE;
        let mut all = freed.iter();
        all.all(|bytes| bytes[GUARD..bytes.len() - GUARD].chunks(4096).all(is_fresh))
    }

    fn wrong(message: String) -> Error {
        Error::Device {
            name: "emulated".to_owned(),
            message,
        }
    }

    /// Operands as f32, which is exact.
    fn operands(&self, address: u64, count: usize) -> Result<Cow<'_, [f32]>> {
        self.check(address, count * Operand::size(self.dtype))?;
        // SAFETY: the range is allocated, and nothing writes to it during the product.
        Ok(match self.dtype {
            Dtype::F32 => unsafe {
                Cow::Borrowed(std::slice::from_raw_parts(address as *const f32, count))
            },
            Dtype::Bf16 => {
                let halves = unsafe { std::slice::from_raw_parts(address as *const u16, count) };
                let number = |&half: &u16| f32::from_bits(u32::from(half) << 16);
                Cow::Owned(halves.iter().map(number).collect())
            }
        })
    }

    /// Tells the kernels' library what is allocated.
    fn tell_memory(&self) {
        let memory = self.memory();
        let length = |held: &[u8]| (held.len() - 2 * GUARD) as u64;
        let ranges = memory
            .iter()
            .map(|(&begin, held)| [begin, begin + length(held)]);
        let ranges: Vec<[u64; 2]> = ranges.collect();
        drop(memory);
        type Tell = unsafe extern "C" fn(*const [u64; 2], usize);
        // SAFETY: the library is compiled with this function, and the ranges outlive the launch's
        // checks, since they are leaked: this is for a run of a few minutes.
        unsafe {
            let tell = library(self.dtype).get::<Tell>(b"emulate_memory");
            let ranges = ranges.leak();
            tell.expect("it is compiled in")(ranges.as_ptr(), ranges.len());
        }
    }

    /// What an access of the last launch did wrong.
    fn complaint(&self) -> Option<String> {
        if !looks_at_accesses() {
            return None;
        }
        // SAFETY: the library is compiled with this function, which returns a text of its own.
        let text = unsafe {
            let ask = library(self.dtype)
                .get::<unsafe extern "C" fn() -> *const c_char>(b"emulate_complaint");
            CStr::from_ptr(ask.expect("it is compiled in")())
        };
        (!text.is_empty()).then(|| text.to_string_lossy().into_owned())
    }

    /// Refuses everything once the device is lost.
    fn alive(&self) -> Result<()> {
        match self.limits.launches.load(Ordering::Relaxed) {
            0 => Err(Error::DeviceLost {
                name: "emulated".to_owned(),
                message: "running a kernel: CUDA_ERROR_ILLEGAL_ADDRESS".to_owned(),
            }),
            _ => Ok(()),
        }
    }

    /// Refuses an access that is not inside one allocation.
    fn check(&self, address: u64, bytes: usize) -> Result<()> {
        self.alive()?;
        let memory = self.memory();
        let inside = memory
            .range(..=address)
            .next_back()
            .is_some_and(|(start, held)| {
                address + bytes as u64 <= start + (held.len() - 2 * GUARD) as u64
            });
        match inside {
            true => Ok(()),
            false => Err(Self::wrong(format!(
                "{bytes} bytes at {address:#x} are not allocated"
            ))),
        }
    }
}

impl Backend for Emulator {
    fn name(&self) -> &str {
        "emulated"
    }

    fn numeric_class(&self) -> &str {
        match self.dtype {
            Dtype::F32 => "emulated-f32",
            Dtype::Bf16 => "emulated-bf16",
        }
    }

    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn allocate(&self, bytes: usize) -> Result<u64> {
        self.alive()?;
        let wanted = self.held() + bytes;
        if wanted > self.limits.bytes.load(Ordering::Relaxed) {
            self.limits.refused.fetch_add(1, Ordering::Relaxed);
            return Err(Error::DeviceFull {
                name: "emulated".to_owned(),
                message: format!("has no room for {bytes} more bytes"),
            });
        }
        self.limits.peak.fetch_max(wanted, Ordering::Relaxed);
        let mut memory = vec![FRESH_BYTE; bytes + 2 * GUARD].into_boxed_slice();
        memory[..GUARD].fill(GUARD_BYTE);
        memory[GUARD + bytes..].fill(GUARD_BYTE);
        let address = memory.as_ptr() as u64 + GUARD as u64;
        self.memory().insert(address, memory);
        if let Some(recording) = &mut *self.recording.lock().expect("no thread panics here") {
            recording.held.push(address);
        }
        Ok(address)
    }

    fn free(&self, address: u64) {
        if let Some(recording) = &mut *self.recording.lock().expect("no thread panics here") {
            let is_own = recording.held.contains(&address);
            assert!(is_own, "a recording frees what it allocated");
            recording.freed.push(address);
            return;
        }
        self.release(address);
    }

    fn free_bytes(&self) -> Result<usize> {
        self.alive()?;
        Ok(self.limits.bytes.load(Ordering::Relaxed) - self.held())
    }

    fn take_peak(&self) -> Result<usize> {
        Ok(self.limits.peak.swap(self.held(), Ordering::Relaxed))
    }

    fn zero(&self, address: u64, bytes: usize) -> Result<()> {
        if self.record(Asked::Zero(address, bytes)) {
            return Ok(());
        }
        self.settle()?;
        self.check(address, bytes)?;
        // SAFETY: the range is allocated.
        unsafe { std::ptr::write_bytes(address as *mut u8, 0, bytes) };
        Ok(())
    }

    fn upload(&self, from: &[u8], to: u64) -> Result<()> {
        self.not_recording()?;
        self.check(to, from.len())?;
        let mut ring = self.ring.lock().expect("no thread panics holding this");
        ring.upload(self, from, to)
    }

    fn download(&self, from: u64, to: &mut [u8]) -> Result<()> {
        self.not_recording()?;
        self.check(from, to.len())?;
        self.settle()?;
        // SAFETY: the range is allocated.
        unsafe { std::ptr::copy_nonoverlapping(from as *const u8, to.as_mut_ptr(), to.len()) };
        Ok(())
    }

    fn copy(&self, from: u64, to: u64, bytes: usize) -> Result<()> {
        if self.record(Asked::Copy(from, to, bytes)) {
            return Ok(());
        }
        self.settle()?;
        self.check(from, bytes)?;
        self.check(to, bytes)?;
        // SAFETY: both ranges are allocated.
        unsafe { std::ptr::copy(from as *const u8, to as *mut u8, bytes) };
        Ok(())
    }

    fn launch(&self, launch: &Launch<'_>) -> Result<()> {
        let &Launch {
            kernel,
            grid,
            block,
            shared,
            arguments,
        } = launch;
        if self.record(Asked::Launch {
            kernel,
            grid,
            block,
            shared,
            arguments: arguments.to_vec(),
        }) {
            return Ok(());
        }
        self.settle()?;
        self.alive()?;
        if self.limits.launches.load(Ordering::Relaxed) < usize::MAX {
            self.limits.launches.fetch_sub(1, Ordering::Relaxed);
            self.alive()?;
        }
        if !is_allowed(launch) {
            return Err(Self::wrong(format!("no GPU launches {launch:?}")));
        }
        if looks_at_accesses() {
            self.tell_memory();
        }
        let name = format!("emulate_{}", launch.kernel);
        // SAFETY: every symbol of this prefix is made by EMULATE with this signature.
        let entry = unsafe { library(self.dtype).get::<Entry>(name.as_bytes()) };
        let entry = entry.map_err(|e| Self::wrong(format!("no kernel {}: {e}", launch.kernel)))?;
        let letter = |argument: &Argument| match argument {
            Argument::Pointer(_) => 'p',
            Argument::Int(_) => 'i',
            Argument::Float(_) => 'f',
            Argument::Count(_) => 'q',
        };
        let letters: String = launch.arguments.iter().map(letter).collect();
        let letters = CString::new(letters).expect("letters only");
        let mut values: Vec<u64> = launch.arguments.iter().map(|a| a.bits()).collect();
        let mut pointers: Vec<*mut c_void> = (values.iter_mut())
            .map(|value| std::ptr::from_mut(value).cast())
            .collect();
        // SAFETY: the kernel compares the letters with its parameters before it reads a value;
        // the guards check that pointers refer to enough memory.
        let outcome = unsafe {
            entry(
                pointers.as_mut_ptr(),
                letters.as_ptr(),
                launch.grid.0 as c_uint,
                launch.grid.1 as c_uint,
                launch.block,
                (launch.shared * size_of::<f32>()) as c_uint,
                self.order.seed(),
            )
        };
        let kernel = launch.kernel;
        match outcome {
            0 if !self.guards_hold() => Err(Self::wrong(format!(
                "{kernel} wrote outside of its buffers"
            ))),
            0 if !self.freed_memory_is_as_it_was() => Err(Self::wrong(format!(
                "{kernel} wrote into memory that was freed"
            ))),
            0 => match self.complaint() {
                None => Ok(()),
                Some(complaint) => Err(Self::wrong(format!("{kernel}: {complaint}"))),
            },
            3 => Err(Self::wrong(format!(
                "{kernel} reads a vector at an address that is no multiple of its size"
            ))),
            1 => Err(Self::wrong(format!(
                "{kernel} takes other arguments than {letters:?}"
            ))),
            _ => Err(Self::wrong(format!(
                "{kernel}: not all threads reach a barrier"
            ))),
        }
    }

    fn multiply(&self, product: &Product) -> Result<()> {
        if self.record(Asked::Multiply(*product)) {
            return Ok(());
        }
        self.settle()?;
        let &Product {
            a, b, c, m, k, n, ..
        } = product;
        let (b_rows, b_width) = match product.b_transposed {
            true => (n, k),
            false => (k, n),
        };
        // The last row has no padding after it.
        let stored = match b_rows {
            0 => 0,
            rows => (rows - 1) * product.b_stride + b_width,
        };
        // The library may lose the rest of sums over rows (facebookexperimental/triton#2767).
        if product.a_transposed && k % TILE != 0 {
            let message = format!("a product sums {k} rows, which are no whole tiles");
            return Err(Self::wrong(message));
        }
        let (a, mut b) = (self.operands(a, m * k)?, self.operands(b, stored)?);
        if product.b_stride > b_width {
            let rows = b.chunks(product.b_stride);
            b = Cow::Owned(rows.flat_map(|row| &row[..b_width]).copied().collect());
        }
        self.check(c, m * n * size_of::<f32>())?;
        // SAFETY: the range is allocated, and c is no operand of its own product.
        let c = unsafe { std::slice::from_raw_parts_mut(c as *mut f32, m * n) };
        let a = match product.a_transposed {
            true => View::new(&a, k, m).transposed(),
            false => View::new(&a, m, k),
        };
        let b = match product.b_transposed {
            true => View::new(&b, n, k).transposed(),
            false => View::new(&b, k, n),
        };
        matmul(a, b, 0..n, c, product.accumulate);
        Ok(())
    }

    fn record(&self, work: &mut dyn FnMut() -> Result<()>) -> Result<u64> {
        self.alive()?;
        let left = &self.limits.recordings;
        let one_less = |left: usize| left.checked_sub(1);
        if (left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less)).is_err() {
            return Err(Self::wrong("recording a step: not supported".to_owned()));
        }
        let recording = || self.recording.lock().expect("no thread panics here");
        let before = recording().replace(Recorded::default());
        assert!(before.is_none(), "one recording at a time");
        let done = work();
        let recorded = recording().take().expect("it was put there above");
        let all_freed = recorded.held.len() == recorded.freed.len();
        let mut others = self.recorded.lock().expect("no thread panics here");
        let number = others.last_key_value().map_or(1, |(last, _)| last + 1);
        others.insert(number, Arc::new(recorded));
        drop(others);
        if let Err(error) = done {
            self.forget(number);
            return Err(error);
        }
        assert!(all_freed, "a recording frees what it allocated");
        Ok(number)
    }

    fn replay(&self, recording: u64) -> Result<()> {
        let recorded =
            Arc::clone(&self.recorded.lock().expect("no thread panics here")[&recording]);
        for address in &recorded.held {
            if let Some(held) = self.memory().get_mut(address) {
                let end = held.len() - GUARD;
                held[GUARD..end].fill(FRESH_BYTE);
            }
        }
        for asked in &recorded.asked {
            match asked {
                &Asked::Zero(address, bytes) => self.zero(address, bytes)?,
                &Asked::Copy(from, to, bytes) => self.copy(from, to, bytes)?,
                Asked::Launch {
                    kernel,
                    grid,
                    block,
                    shared,
                    arguments,
                } => self.launch(&Launch {
                    kernel,
                    grid: *grid,
                    block: *block,
                    shared: *shared,
                    arguments,
                })?,
                Asked::Multiply(product) => self.multiply(product)?,
            }
        }
        Ok(())
    }

    fn forget(&self, recording: u64) {
        let mut recorded = self.recorded.lock().expect("no thread panics here");
        if let Some(recorded) = recorded.remove(&recording) {
            recorded
                .held
                .iter()
                .for_each(|&address| self.release(address));
        }
    }
}
