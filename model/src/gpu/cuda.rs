//! [`Backend`] on an NVIDIA GPU: the driver's API for memory and launches, cuBLAS for products,
//! everything on one stream.

mod class;
mod lane;
mod memory;
mod product;
mod transfers;

use self::class::{Decides, numeric_class, variables};
use self::lane::{Lane, WORKSPACE_BYTES, described, driver_failed};
use super::backend::{Backend, Gpu, Launch, Product};
use super::compiler::{self, Compiler};
use super::staging::{HALF_BYTES, Ring};
use super::{kernels, libraries, tiles};
use crate::{Dtype, Error, Result};
use cudarc::driver::{result as driver, sys};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::{CString, c_int, c_void};
use std::sync::Mutex;

/// CUDA of driver 580, the oldest that runs CUDA 13's libraries.
const DRIVER_MIN: c_int = 13_000;

/// CUDA of the libraries.
const CUDA_MAJOR: c_int = 13;

/// Ampere; the kernels were never compiled for older architectures.
const CAPABILITY_MIN: (i32, i32) = (8, 0);

#[derive(Debug)]
struct Cuda {
    name: String,
    numeric_class: String,
    dtype: Dtype,
    device: sys::CUdevice,
    context: sys::CUcontext,
    functions: BTreeMap<String, sys::CUfunction>,
    /// Executes work.
    doing: Lane,
    /// Records work and never executes any, so that calls of other threads are not part of a
    /// recording.
    writing: Lane,
    /// What uploads are copied from, and an event for each half of it.
    ring: Mutex<Ring>,
    marks: [sys::CUevent; 2],
    /// Held while recording: a stream makes one recording at a time.
    recording: Mutex<()>,
}

thread_local! {
    /// Whether this thread's calls are recorded.
    static RECORDS: Cell<bool> = const { Cell::new(false) };
}

// SAFETY: as for `lane::Blas`.
unsafe impl Send for Cuda {}

// SAFETY: as for `lane::Blas`.
unsafe impl Sync for Cuda {}

/// The driver's device, and the version of its CUDA.
fn found(number: usize) -> Result<(sys::CUdevice, c_int), String> {
    libraries::open_driver()?;
    let failed = driver_failed;
    driver::init().map_err(|e| match e.0 {
        sys::CUresult::CUDA_ERROR_NO_DEVICE => "the NVIDIA driver finds no GPU".to_owned(),
        _ => failed(e),
    })?;
    let mut version = 0;
    // SAFETY: only the version is written.
    let answer = unsafe { sys::cuDriverGetVersion(&mut version) };
    answer.result().map_err(failed)?;
    if version < DRIVER_MIN {
        return Err(format!(
            "the NVIDIA driver knows CUDA {}.{}, 13.0 is needed: install driver 580 or newer",
            version / 1000,
            version % 1000 / 10
        ));
    }
    let count = driver::device::get_count().map_err(failed)?;
    let ordinal = match c_int::try_from(number) {
        Ok(ordinal) if ordinal < count => ordinal,
        _ => {
            return Err(format!(
                "the machine has {count} GPU(s), counted from cuda:0"
            ));
        }
    };
    Ok((driver::device::get(ordinal).map_err(failed)?, version))
}

/// Bytes of the memory of GPU `number`.
///
/// # Errors
/// Why it cannot be asked, as a clause for a message.
pub(super) fn memory_bytes(number: usize) -> Result<u64, String> {
    let (device, _) = found(number)?;
    // SAFETY: the device was just found.
    let bytes = unsafe { driver::device::total_mem(device) };
    Ok(bytes.map_err(driver_failed)? as u64)
}

/// Opens GPU `number`; its products have operands of `dtype`.
///
/// # Errors
/// Why it cannot be used, as a clause for a message.
pub(super) fn open(number: usize, dtype: Dtype) -> Result<Gpu, String> {
    let (device, version) = found(number)?;
    let failed = driver_failed;
    let model = driver::device::get_name(device).map_err(failed)?;
    let attribute = |attribute| {
        // SAFETY: the device was just found.
        unsafe { driver::device::get_attribute(device, attribute) }.map_err(failed)
    };
    use sys::CUdevice_attribute as Attribute;
    let capability = (
        attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
        attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
    );
    if capability < CAPABILITY_MIN {
        return Err(format!(
            "the {model} has compute capability {}.{}, {}.{} is needed",
            capability.0, capability.1, CAPABILITY_MIN.0, CAPABILITY_MIN.1
        ));
    }
    if attribute(Attribute::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED)? == 0 {
        return Err(format!(
            "the {model} has no memory pools, from which its memory is taken: a virtual GPU may lack them"
        ));
    }
    let multiprocessors = attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
    let (products, compiler) = libraries::open_toolkit()?;
    let compiler = Compiler::new(compiler)?;
    let (major, minor) = compiler.version;
    right_version("NVRTC", major)?;
    let program = compiler::program(dtype);
    let code = compiler.code(&program, capability)?;
    // SAFETY: handles are used in the order the driver requires: context, then what is in it.
    unsafe {
        let context = driver::primary_ctx::retain(device).map_err(failed)?;
        driver::ctx::set_current(context).map_err(failed)?;
        memory::keep_freed(device).map_err(failed)?;
        let module = driver::module::load_data(code.as_ptr().cast()).map_err(|e| {
            format!(
                "the NVIDIA driver, for CUDA {}.{}, does not take the machine code of NVRTC \
                 {major}.{minor}: {}; update the driver, or name a folder with older libraries by {}",
                version / 1000,
                version % 1000 / 10,
                described(e),
                libraries::FOLDER_VARIABLE,
            )
        })?;
        let mut functions = BTreeMap::new();
        for name in kernels::names_in(&program) {
            let text = CString::new(name).map_err(|e| e.to_string())?;
            let function = driver::module::get_function(module, text).map_err(failed)?;
            if name.starts_with("attend") {
                // More than the 48 KiB that a block may use by default.
                driver::function::set_function_attribute(
                    function,
                    sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                    (tiles::SHARED_MAX * size_of::<f32>()) as c_int,
                )
                .map_err(failed)?;
            }
            functions.insert(name.to_owned(), function);
        }
        let workspace = driver::malloc_sync(WORKSPACE_BYTES).map_err(failed)?;
        let [doing, writing] = [
            Lane::new(products, workspace)?,
            Lane::new(products, workspace)?,
        ];
        let blas_version = doing.version()?;
        right_version("cuBLAS", blas_version / 10_000)?;
        let decides = Decides {
            capability,
            multiprocessors,
            nvrtc: compiler.version,
            cublas: blas_version,
        };
        Ok(Gpu::new(Cuda {
            name: format!("cuda:{number} ({model}, CUDA {major}.{minor})"),
            numeric_class: numeric_class((&model, dtype, &program), &decides, variables()),
            dtype,
            device,
            context,
            functions,
            doing,
            writing,
            ring: Mutex::new(Ring::new(HALF_BYTES)),
            marks: lane::marks()?,
            recording: Mutex::default(),
        }))
    }
}

/// Refuses a library of another CUDA version.
fn right_version(product: &str, major: c_int) -> Result<(), String> {
    match major {
        CUDA_MAJOR => Ok(()),
        other => Err(format!(
            "the {product} that is found is of CUDA {other}, {CUDA_MAJOR} is needed: name the right \
             folder by {}",
            libraries::FOLDER_VARIABLE
        )),
    }
}

impl Cuda {
    fn failed(&self, doing: &str, e: driver::DriverError) -> Error {
        use sys::CUresult as Answer;
        let (name, message) = (self.name.clone(), format!("{doing}: {}", described(e)));
        match e.0 {
            Answer::CUDA_ERROR_OUT_OF_MEMORY => Error::DeviceFull { name, message },
            // The call is invalid; the device still works.
            Answer::CUDA_ERROR_INVALID_VALUE
            | Answer::CUDA_ERROR_INVALID_HANDLE
            | Answer::CUDA_ERROR_NOT_FOUND
            | Answer::CUDA_ERROR_NOT_SUPPORTED
            | Answer::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES => Error::Device { name, message },
            // A sticky error is the answer to every later call too.
            _ if !self.records() && self.check_alive().is_ok() => Error::Device { name, message },
            _ => Error::DeviceLost { name, message },
        }
    }

    /// Waits for all work: whether the device still answers.
    fn check_alive(&self) -> Result<()> {
        // SAFETY: the stream is alive.
        unsafe { driver::stream::synchronize(self.doing.stream) }.map_err(|e| Error::DeviceLost {
            name: self.name.clone(),
            message: described(e),
        })
    }

    /// Whether this thread's calls are recorded.
    fn records(&self) -> bool {
        RECORDS.get()
    }

    /// The lane of this thread's calls.
    fn lane(&self) -> &Lane {
        match self.records() {
            true => &self.writing,
            false => &self.doing,
        }
    }

    /// Runs `work`, which needs memory. If there is none, retries after returning freed memory that
    /// the allocator keeps, which may be fragmented.
    fn with_room<T>(
        &self,
        what: &str,
        mut work: impl FnMut() -> Result<T, driver::DriverError>,
    ) -> Result<T> {
        let full = |e: &driver::DriverError| e.0 == sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY;
        let done = match work() {
            // Returning memory waits for the stream, which cannot be recorded.
            Err(e) if full(&e) && !self.records() => {
                self.give_freed_memory_back()?;
                work()
            }
            other => other,
        };
        done.map_err(|e| match full(&e) {
            true => Error::DeviceFull {
                name: self.name.clone(),
                message: format!(
                    "has no room for {what} ({} bytes free); lower jobs.decode_rows, set \
                     actor_rollout_ref.model.enable_gradient_checkpointing, or take a smaller model",
                    driver::mem_get_info().map_or(0, |(free, _)| free)
                ),
            },
            false => self.failed(what, e),
        })
    }

    /// Waits for all work, then returns freed memory to the driver.
    fn give_freed_memory_back(&self) -> Result<()> {
        memory::give_freed_back(self.device, self.doing.stream)
            .map_err(|e| self.failed("giving memory back", e))
    }

    /// The graph of the calls that `work` makes.
    fn written_down(&self, work: &mut dyn FnMut() -> Result<()>) -> Result<sys::CUgraph> {
        let stream = self.writing.stream;
        let failed = |e| self.failed("recording a step", e);
        let one = self.recording.lock();
        let _one = one.expect("no thread panics holding this");
        // cuBLAS and the driver may initialise on first use, which stricter modes
        // refuse; calls that cannot be recorded are refused by `not_recording`.
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: the stream is alive, and idle.
        unsafe { driver::stream::begin_capture(stream, mode) }.map_err(failed)?;
        RECORDS.set(true);
        let done = work();
        RECORDS.set(false);
        // SAFETY: the capture began above, and ends here in any case.
        let graph = unsafe { driver::stream::end_capture(stream) };
        if let (Err(_), Ok(graph)) = (&done, &graph) {
            // SAFETY: nothing else refers to the graph.
            let _ = unsafe { driver::graph::destroy(*graph) };
        }
        done?;
        graph.map_err(failed)
    }

    /// Refuses copies from and to the CPU while recording: they access memory at once.
    fn not_recording(&self) -> Result<()> {
        match self.records() {
            true => Err(Error::Device {
                name: self.name.clone(),
                message: "a copy from or to the processor cannot be recorded".to_owned(),
            }),
            false => Ok(()),
        }
    }

    /// Makes the context current on this thread.
    fn enter(&self) -> Result<()> {
        // SAFETY: the context is retained for as long as the process lives.
        unsafe { driver::ctx::set_current(self.context) }
            .map_err(|e| self.failed("entering its context", e))
    }
}

impl Backend for Cuda {
    fn name(&self) -> &str {
        &self.name
    }

    fn numeric_class(&self) -> &str {
        &self.numeric_class
    }

    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn allocate(&self, bytes: usize) -> Result<u64> {
        self.enter()?;
        let stream = self.lane().stream;
        // SAFETY: the stream is alive.
        self.with_room(&format!("{bytes} more bytes"), || unsafe {
            driver::malloc_async(stream, bytes)
        })
    }

    fn free(&self, address: u64) {
        // What cannot be freed is freed with the process; there is no caller to report it to.
        let _ = self.enter();
        // SAFETY: the address is from `allocate`, and freed once, in the stream's order.
        let _ = unsafe { driver::free_async(address, self.lane().stream) };
    }

    fn free_bytes(&self) -> Result<usize> {
        self.enter()?;
        self.give_freed_memory_back()?;
        let asked = driver::mem_get_info();
        asked.map_or_else(
            |e| Err(self.failed("asking for its memory", e)),
            |(free, _)| Ok(free),
        )
    }

    fn take_peak(&self) -> Result<usize> {
        self.enter()?;
        memory::take_peak(self.device).map_err(|e| self.failed("asking for its memory", e))
    }

    fn zero(&self, address: u64, bytes: usize) -> Result<()> {
        self.enter()?;
        // SAFETY: buffers are as long as they say.
        unsafe { driver::memset_d8_async(address, 0, bytes, self.lane().stream) }
            .map_err(|e| self.failed("filling memory", e))
    }

    fn upload(&self, from: &[u8], to: u64) -> Result<()> {
        self.enter()?;
        self.not_recording()?;
        let mut ring = self.ring.lock().expect("no thread panics holding this");
        ring.upload(self, from, to)
    }

    fn download(&self, from: u64, to: &mut [u8]) -> Result<()> {
        self.enter()?;
        self.not_recording()?;
        // SAFETY: buffers are as long as they say; `to` outlives the wait.
        unsafe {
            driver::memcpy_dtoh_async(to, from, self.doing.stream)
                .and_then(|()| driver::stream::synchronize(self.doing.stream))
        }
        .map_err(|e| self.failed("copying from it", e))
    }

    fn copy(&self, from: u64, to: u64, bytes: usize) -> Result<()> {
        self.enter()?;
        // SAFETY: buffers are as long as they say.
        unsafe { driver::memcpy_dtod_async(to, from, bytes, self.lane().stream) }
            .map_err(|e| self.failed("copying on it", e))
    }

    fn launch(&self, launch: &Launch<'_>) -> Result<()> {
        self.enter()?;
        let Some(&function) = self.functions.get(launch.kernel) else {
            return Err(Error::Device {
                name: self.name.clone(),
                message: format!("there is no kernel {}", launch.kernel),
            });
        };
        let mut values: Vec<u64> = launch.arguments.iter().map(|a| a.bits()).collect();
        let mut pointers: Vec<*mut c_void> = (values.iter_mut())
            .map(|value| std::ptr::from_mut(value).cast())
            .collect();
        let size = |size: usize| u32::try_from(size).unwrap_or(u32::MAX);
        let mut run = || {
            // SAFETY: arguments fit the kernel, which the emulated device checks in tests; the driver
            // reads them before it returns.
            unsafe {
                driver::launch_kernel(
                    function,
                    (size(launch.grid.0), size(launch.grid.1), 1),
                    (launch.block, 1, 1),
                    size(launch.shared * size_of::<f32>()),
                    self.lane().stream,
                    &mut pointers,
                )
            }
        };
        self.with_room(launch.kernel, &mut run)
    }

    fn multiply(&self, product: &Product) -> Result<()> {
        self.enter()?;
        self.product(product)
    }

    fn record(&self, work: &mut dyn FnMut() -> Result<()>) -> Result<u64> {
        self.enter()?;
        // Recording executes nothing. If the device is lost, the next call reports it.
        let not_lost = |error| match error {
            Error::DeviceLost { name, message } => Error::Device { name, message },
            other => other,
        };
        let graph = self.written_down(work).map_err(not_lost)?;
        let flags = sys::CUgraphInstantiate_flags(0);
        let made = self.with_room("a recorded step", || {
            // SAFETY: the graph is alive.
            unsafe { driver::graph::instantiate(graph, flags) }
        });
        // SAFETY: nothing else refers to the graph.
        let _ = unsafe { driver::graph::destroy(graph) };
        Ok(made.map_err(not_lost)? as u64)
    }

    fn replay(&self, recording: u64) -> Result<()> {
        self.enter()?;
        // SAFETY: the recording is from `record`, and not freed yet.
        self.with_room("a recorded step's numbers", || unsafe {
            driver::graph::launch(recording as sys::CUgraphExec, self.doing.stream)
        })
    }

    fn forget(&self, recording: u64) {
        // As with memory, there is no caller to report an error to.
        let _ = self.enter();
        // SAFETY: the recording is from `record`, and freed once; if it is executing, the driver
        // frees it afterwards.
        let _ = unsafe { driver::graph::exec_destroy(recording as sys::CUgraphExec) };
    }
}
