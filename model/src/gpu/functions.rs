//! The functions of cuBLAS and NVRTC that are called, taken from the libraries that were opened: by
//! name a loader may give those of another version, which is in its path under an unversioned name.

use std::ffi::{c_char, c_int, c_void};

use libloading::os::unix::Library;

macro_rules! functions {
    ($(#[$about:meta])* $table:ident { $($name:ident($($argument:ty),* $(,)?);)* }) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy)]
        #[expect(non_snake_case, reason = "as the library names them")]
        pub(super) struct $table {
            $(pub(super) $name: unsafe extern "C" fn($($argument),*) -> c_int,)*
        }

        impl $table {
            /// # Safety
            /// The library is the one whose functions these are, and stays open.
            pub(super) unsafe fn of(library: &Library) -> Result<Self, String> {
                Ok($table {
                    $($name: {
                        // SAFETY: the caller's promise; the signature is the one of its header.
                        let found = unsafe { library.get(stringify!($name).as_bytes()) };
                        *found.map_err(|e| format!("{} is missing: {e}", stringify!($name)))?
                    },)*
                })
            }
        }
    };
}

type Handle = *mut c_void;

functions! {
    /// Of cuBLAS.
    Products {
        cublasCreate_v2(*mut Handle);
        cublasSetStream_v2(Handle, *mut c_void);
        cublasSetMathMode(Handle, c_int);
        cublasSetWorkspace_v2(Handle, *mut c_void, usize);
        cublasGetVersion_v2(Handle, *mut c_int);
        cublasGemmEx(
            Handle, c_int, c_int, c_int, c_int, c_int, *const c_void,
            *const c_void, c_int, c_int,
            *const c_void, c_int, c_int, *const c_void,
            *mut c_void, c_int, c_int, c_int, c_int,
        );
    }
}

functions! {
    /// Of NVRTC.
    Compiling {
        nvrtcVersion(*mut c_int, *mut c_int);
        nvrtcCreateProgram(
            *mut Handle, *const c_char, *const c_char, c_int, *const *const c_char, *const *const c_char,
        );
        nvrtcDestroyProgram(*mut Handle);
        nvrtcCompileProgram(Handle, c_int, *const *const c_char);
        nvrtcGetCUBINSize(Handle, *mut usize);
        nvrtcGetCUBIN(Handle, *mut c_char);
        nvrtcGetProgramLogSize(Handle, *mut usize);
        nvrtcGetProgramLog(Handle, *mut c_char);
    }
}
