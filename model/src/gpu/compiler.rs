//! Compiles the kernels with NVRTC to the machine code of one architecture: the driver has
//! nothing to translate, so its version does not affect results.

use std::ffi::{CStr, CString};

use cudarc::nvrtc::{result, sys};

use super::kernels;
use crate::Dtype;

/// Macros that `emulator/device.h` defines differently.
const PRELUDE: &str = concat!(
    "#define DYNAMIC_SHARED(name) extern __shared__ __align__(16) float name[]\n",
    "#define UNROLL _Pragma(\"unroll\")\n",
);

/// The source that [`compile`] compiles.
pub(super) fn program(dtype: Dtype) -> String {
    kernels::program(PRELUDE, dtype)
}

/// NVRTC's version, (major, minor).
pub(super) fn version() -> Result<(i32, i32), String> {
    let (mut major, mut minor) = (0, 0);
    // SAFETY: only these two numbers are written.
    let status = unsafe { sys::nvrtcVersion(&mut major, &mut minor) };
    status.result().map_err(|e| format!("NVRTC: {e:?}"))?;
    Ok((major, minor))
}

/// Machine code of a program for compute capability (major, minor).
///
/// # Errors
/// The compiler's messages.
pub(super) fn compile(program: &str, (major, minor): (i32, i32)) -> Result<Vec<u8>, String> {
    let text = CString::new(program).map_err(|e| e.to_string())?;
    let failed = |e: result::NvrtcError| format!("NVRTC: {e:?}");
    let program = result::create_program(&text, Some(c"kernels.cu")).map_err(failed)?;
    let options = [
        format!("--gpu-architecture=sm_{major}{minor}"),
        "--std=c++17".to_owned(),
    ];
    // SAFETY: the program was just made, and is destroyed once, at the end.
    unsafe {
        let code = match result::compile_program(program, &options) {
            Ok(()) => machine_code(program).map_err(failed),
            Err(e) => {
                let log = result::get_program_log(program).unwrap_or_default();
                let bytes: Vec<u8> = log.iter().map(|&c| c.cast_unsigned()).collect();
                let text = CStr::from_bytes_until_nul(&bytes).unwrap_or_default();
                Err(format!("NVRTC: {e:?}: {}", text.to_string_lossy()))
            }
        };
        result::destroy_program(program).map_err(failed)?;
        code
    }
}

/// # Safety
/// `program` is compiled.
unsafe fn machine_code(program: sys::nvrtcProgram) -> Result<Vec<u8>, result::NvrtcError> {
    let mut size = 0;
    // SAFETY: the caller's promise.
    unsafe { sys::nvrtcGetCUBINSize(program, &mut size) }.result()?;
    let mut code = vec![0_u8; size];
    // SAFETY: the vector has the size that NVRTC returned.
    unsafe { sys::nvrtcGetCUBIN(program, code.as_mut_ptr().cast()) }.result()?;
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
        if let Err(why) = libraries::open_compiler() {
            println!("not run: {why}");
            return;
        }
        println!("NVRTC {:?}", version().unwrap());
        for (capability, dtype) in ARCHITECTURES
            .into_iter()
            .flat_map(|capability| Dtype::ALL.map(|dtype| (capability, dtype)))
        {
            let program = program(dtype);
            let code = compile(&program, capability).unwrap();
            assert!(code.starts_with(b"\x7fELF"), "{capability:?}");
            for name in kernels::names_in(&program) {
                let is_there = code.windows(name.len()).any(|part| part == name.as_bytes());
                assert!(is_there, "{name} for {capability:?}");
            }
            println!("{capability:?} {dtype}: {} bytes", code.len());
        }
        let wrong = compile("extern \"C\" __global__ void k() { oops }", (9, 0)).unwrap_err();
        assert!(
            wrong.contains("kernels.cu(1)") && wrong.contains("oops"),
            "{wrong}"
        );
    }
}
