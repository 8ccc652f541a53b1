//! Compiles the kernels with NVRTC to the machine code of one architecture: the driver has
//! nothing to translate, so its version does not affect results.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};

use super::functions::Compiling;
use super::kernels;
use crate::Dtype;

/// Macros that `emulator/device.h` defines differently.
const PRELUDE: &str = concat!(
    "#define DYNAMIC_SHARED(name) extern __shared__ __align__(16) float name[]\n",
    "#define UNROLL _Pragma(\"unroll\")\n",
    "#define ALIGNED(at, bytes)\n",
);

/// Multiply-adds only where the kernels contain them: with a choice of its own the compiler could
/// make another one where a function is inlined, for sampling and for scoring.
pub(super) const OPTIONS: [&CStr; 2] = [c"--std=c++17", c"--fmad=false"];

/// With this variable of the environment set, machine code says which line it is of, for profilers
/// and sanitizers. The instructions are the same, so this is not part of the numeric class.
const LINES_VARIABLE: &str = "AGENTGYM_CUDA_LINES";

fn options() -> impl Iterator<Item = &'static CStr> {
    let lines = std::env::var_os(LINES_VARIABLE).map(|_| c"--generate-line-info");
    OPTIONS.into_iter().chain(lines)
}

/// The environment variable that names the folder of compiled kernels.
const CACHE_VARIABLE: &str = "AGENTGYM_CUDA_CACHE";

/// The source that is compiled.
pub(super) fn program(dtype: Dtype) -> String {
    kernels::program(PRELUDE, dtype)
}

/// NVRTC.
#[derive(Debug, Clone, Copy)]
pub(super) struct Compiler {
    calls: Compiling,
    /// (major, minor)
    pub(super) version: (c_int, c_int),
}

impl Compiler {
    pub(super) fn new(calls: Compiling) -> Result<Self, String> {
        let (mut major, mut minor) = (0, 0);
        // SAFETY: only these two numbers are written.
        answer(unsafe { (calls.nvrtcVersion)(&raw mut major, &raw mut minor) })?;
        Ok(Compiler {
            calls,
            version: (major, minor),
        })
    }

    /// The machine code of a program for a compute capability, from the folder of earlier ones if it
    /// is there.
    ///
    /// # Errors
    /// The compiler's messages.
    pub(super) fn code(&self, program: &str, capability: (i32, i32)) -> Result<Vec<u8>, String> {
        let options: Vec<&CStr> = options().collect();
        let key = format!("{:?} {capability:?} {options:?}\n{program}", self.version);
        kept(cache().as_deref(), &key, || {
            self.compile(program, capability)
        })
    }

    /// The same, compiled in any case.
    pub(super) fn compile(
        &self,
        program: &str,
        (major, minor): (i32, i32),
    ) -> Result<Vec<u8>, String> {
        let text = CString::new(program).map_err(|e| e.to_string())?;
        let architecture = format!("--gpu-architecture=sm_{major}{minor}");
        let architecture = CString::new(architecture).map_err(|e| e.to_string())?;
        let options: Vec<*const c_char> = std::iter::once(architecture.as_ptr())
            .chain(options().map(CStr::as_ptr))
            .collect();
        let (mut made, none) = (std::ptr::null_mut(), std::ptr::null());
        let name = c"kernels.cu".as_ptr();
        // SAFETY: texts and options outlive the calls; the program is destroyed once, at the end.
        unsafe {
            let calls = &self.calls;
            let create = calls.nvrtcCreateProgram;
            answer(create(&raw mut made, text.as_ptr(), name, 0, none, none))?;
            let done = (calls.nvrtcCompileProgram)(made, options.len() as c_int, options.as_ptr());
            let code = match answer(done) {
                Ok(()) => text_of(made, calls.nvrtcGetCUBINSize, calls.nvrtcGetCUBIN),
                Err(e) => {
                    let log = text_of(made, calls.nvrtcGetProgramLogSize, calls.nvrtcGetProgramLog);
                    let log = log.unwrap_or_default();
                    let log = CStr::from_bytes_until_nul(&log).unwrap_or_default();
                    Err(format!("{e}: {}", log.to_string_lossy()))
                }
            };
            answer((calls.nvrtcDestroyProgram)(&raw mut made))?;
            code
        }
    }
}

/// What a compiled program has, by a function that tells its size and one that copies it.
///
/// # Safety
/// Both are NVRTC's, and the program is compiled.
unsafe fn text_of(
    program: *mut c_void,
    size: unsafe extern "C" fn(*mut c_void, *mut usize) -> c_int,
    copy: unsafe extern "C" fn(*mut c_void, *mut c_char) -> c_int,
) -> Result<Vec<u8>, String> {
    let mut bytes = 0;
    // SAFETY: the caller's promise.
    answer(unsafe { size(program, &raw mut bytes) })?;
    let mut text = vec![0_u8; bytes];
    // SAFETY: the vector has the size that NVRTC returned.
    answer(unsafe { copy(program, text.as_mut_ptr().cast()) })?;
    Ok(text)
}

fn answer(status: c_int) -> Result<(), String> {
    match status {
        0 => Ok(()),
        6 => Err("NVRTC: the kernels do not compile".to_owned()),
        other => Err(format!("NVRTC: error {other}")),
    }
}

/// The folder of compiled kernels: the named one, or one among the user's caches.
fn cache() -> Option<PathBuf> {
    let folder = |name: &str| {
        std::env::var_os(name)
            .filter(|v| !v.is_empty())
            .map(PathBuf::from)
    };
    let own = || {
        let caches = folder("XDG_CACHE_HOME").or_else(|| Some(folder("HOME")?.join(".cache")));
        Some(caches?.join("agentgym").join("kernels"))
    };
    folder(CACHE_VARIABLE).or_else(own)
}

/// Bytes of the digest before the code.
const DIGEST: usize = blake3::OUT_LEN;

/// The file of this key in a folder, or what `make` makes, which is then kept there if that is
/// possible. What is damaged is made again.
fn kept(
    folder: Option<&Path>,
    key: &str,
    make: impl FnOnce() -> Result<Vec<u8>, String>,
) -> Result<Vec<u8>, String> {
    let Some(folder) = folder else {
        return make();
    };
    let name = blake3::hash(key.as_bytes()).to_hex();
    let path = folder.join(format!("{name}.cubin"));
    if let Some((digest, code)) = std::fs::read(&path)
        .ok()
        .as_deref()
        .and_then(|f| f.split_at_checked(DIGEST))
        && blake3::hash(code).as_bytes() == digest
    {
        return Ok(code.to_vec());
    }
    let code = make()?;
    let own = folder.join(format!("{name}.{}", std::process::id()));
    let bytes = [blake3::hash(&code).as_bytes().as_slice(), &code].concat();
    let stored = std::fs::create_dir_all(folder)
        .and_then(|()| std::fs::write(&own, bytes))
        .and_then(|()| std::fs::rename(&own, &path));
    if let Err(e) = stored {
        tracing::debug!("compiled kernels are not kept in {}: {e}", folder.display());
    }
    Ok(code)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::libraries;

    /// Ampere, Ada, Hopper, Blackwell.
    const ARCHITECTURES: [(i32, i32); 4] = [(8, 0), (8, 9), (9, 0), (10, 0)];

    #[test]
    fn every_kernel_compiles_for_every_architecture() {
        let compiler = match libraries::open_compiler() {
            Ok(compiler) => Compiler::new(compiler).unwrap(),
            Err(why) => {
                println!("not run: {why}");
                return;
            }
        };
        println!("NVRTC {:?}", compiler.version);
        for (capability, dtype) in ARCHITECTURES
            .into_iter()
            .flat_map(|capability| Dtype::ALL.map(|dtype| (capability, dtype)))
        {
            let program = program(dtype);
            let code = compiler.compile(&program, capability).unwrap();
            assert!(code.starts_with(b"\x7fELF"), "{capability:?}");
            for name in kernels::names_in(&program) {
                let is_there = code.windows(name.len()).any(|part| part == name.as_bytes());
                assert!(is_there, "{name} for {capability:?}");
            }
            println!("{capability:?} {dtype}: {} bytes", code.len());
        }
        let wrong = "extern \"C\" __global__ void k() { oops }";
        let wrong = compiler.compile(wrong, (9, 0)).unwrap_err();
        assert!(
            wrong.contains("kernels.cu(1)") && wrong.contains("oops"),
            "{wrong}"
        );
        // A product and a sum stay two instructions.
        let apart = "extern \"C\" __global__ void k(float* x) { x[0] = x[1] * x[2] + x[3]; }";
        let together =
            "extern \"C\" __global__ void k(float* x) { x[0] = fmaf(x[1], x[2], x[3]); }";
        let [apart, together] =
            [apart, together].map(|text| compiler.compile(text, (9, 0)).unwrap());
        assert_ne!(apart, together, "the compiler contracts");
    }

    #[test]
    fn compiled_kernels_are_kept_and_damaged_ones_made_again() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("new");
        let ask = |key: &str, made: &str| {
            let mut asked = false;
            let found = kept(Some(&folder), key, || {
                asked = true;
                Ok(made.as_bytes().to_vec())
            });
            (String::from_utf8(found.unwrap()).unwrap(), asked)
        };
        let found = |text: &str, asked| (text.to_owned(), asked);
        assert_eq!(ask("a", "one"), found("one", true));
        assert_eq!(ask("a", "two"), found("one", false));
        assert_eq!(ask("b", "three"), found("three", true));
        for file in std::fs::read_dir(&folder).unwrap() {
            let path = file.unwrap().path();
            let mut bytes = std::fs::read(&path).unwrap();
            *bytes.last_mut().unwrap() ^= 1;
            std::fs::write(&path, bytes).unwrap();
        }
        assert_eq!(ask("a", "four"), found("four", true));
        assert_eq!(ask("a", "five"), found("four", false));
        // Where there is no place, or none that can be written, it is compiled.
        let file = folder.join("file");
        std::fs::write(&file, "").unwrap();
        for folder in [None, Some(file.as_path())] {
            assert_eq!(kept(folder, "a", || Ok(vec![6])), Ok(vec![6]));
        }
        assert!(kept(Some(&folder), "c", || Err("no".to_owned())).is_err());
    }
}
