//! CUDA's libraries, opened when they are wanted. The program links none of them, so it
//! starts without; `cudarc` looks each up by its name, and panics where there is none. So
//! they are opened here first, by path where the loader does not know them: a library
//! that is open is found by its name from then on.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

/// Names a folder to look into before all others.
pub(super) const FOLDER_VARIABLE: &str = "AGENTGYM_CUDA_LIBS";

/// The driver's library; it comes with the driver and nothing else.
const DRIVER: &str = "libcuda.so.1";

/// Libraries that come with CUDA 13, each after those it needs.
const TOOLKIT: [(&str, &str); 4] = [
    ("libcublasLt.so.13", "cuBLAS"),
    ("libcublas.so.13", "cuBLAS"),
    ("libnvrtc-builtins.so.13.0", "NVRTC"),
    ("libnvrtc.so.13", "NVRTC"),
];

/// Opens the driver's library.
///
/// # Errors
/// There is none.
pub(super) fn open_driver() -> Result<(), String> {
    static OPENED: OnceLock<Result<(), String>> = OnceLock::new();
    let opened = OPENED.get_or_init(|| {
        open(Path::new(DRIVER)).map_err(|e| format!("there is no NVIDIA driver here ({e})"))
    });
    opened.clone()
}

/// Opens what computing needs.
///
/// # Errors
/// One is not found; the message names it and where it was looked for.
pub(super) fn open_toolkit() -> Result<(), String> {
    open_all(&TOOLKIT, named_folder())
}

/// Opens the compiler of kernels alone.
#[cfg(test)]
pub(super) fn open_compiler() -> Result<(), String> {
    open_all(&TOOLKIT[2..], named_folder())
}

fn named_folder() -> Option<PathBuf> {
    std::env::var_os(FOLDER_VARIABLE).map(PathBuf::from)
}

fn open_all(libraries: &[(&str, &str)], named: Option<PathBuf>) -> Result<(), String> {
    // The named folder stands first; then what the loader knows.
    let before_loader = usize::from(named.is_some());
    let folders = folders(named);
    for (name, product) in libraries {
        let in_folders = folders.iter().map(|folder| folder.join(name));
        let mut candidates: Vec<PathBuf> = in_folders.filter(|path| path.exists()).collect();
        candidates.insert(before_loader.min(candidates.len()), PathBuf::from(name));
        let mut complaints = Vec::new();
        let is_open = candidates.iter().any(|path| match open(path) {
            Ok(()) => true,
            Err(e) => {
                complaints.push(e);
                false
            }
        });
        if !is_open {
            let looked: Vec<String> = folders.iter().map(|f| f.display().to_string()).collect();
            return Err(format!(
                "{product} is not found: {name} is neither on the loader's path nor in {} ({}); \
                 scripts/cuda-libs.sh fetches it, {FOLDER_VARIABLE} names the folder",
                looked.join(", "),
                complaints.join("; "),
            ));
        }
    }
    Ok(())
}

fn open(path: &Path) -> Result<(), String> {
    // Local: no other library is to find its names here by chance.
    // SAFETY: NVIDIA's libraries may be loaded at any time; their initialisers start nothing.
    match unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) } {
        Ok(library) => {
            // Open for as long as the process is: `cudarc` finds it by its name.
            std::mem::forget(library);
            Ok(())
        }
        // What the loader says is behind "dlopen failed".
        Err(e) => Err(std::error::Error::source(&e).map_or(e.to_string(), |why| why.to_string())),
    }
}

/// Where CUDA's libraries may be, in order: the named folder, a toolkit, wheels of PyPI.
fn folders(named: Option<PathBuf>) -> Vec<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let mut folders: Vec<PathBuf> = named.into_iter().collect();
    let homes = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(variable);
    let toolkits = homes.chain(["/usr/local/cuda-13.0".into(), "/usr/local/cuda".into()]);
    folders.extend(toolkits.map(|home: PathBuf| home.join("lib64")));
    let pythons = ["VIRTUAL_ENV", "CONDA_PREFIX"]
        .into_iter()
        .filter_map(variable);
    for python in pythons.chain(["/usr/local".into(), "/usr".into()]) {
        let versions = std::fs::read_dir(python.join("lib")).into_iter().flatten();
        let mut versions: Vec<PathBuf> = versions
            .flatten()
            .filter(|entry| entry.file_name().to_string_lossy().starts_with("python3"))
            .flat_map(|entry| ["site-packages", "dist-packages"].map(|sub| entry.path().join(sub)))
            .map(|packages| packages.join("nvidia/cu13/lib"))
            .filter(|folder| folder.is_dir())
            .collect();
        versions.sort();
        folders.extend(versions);
    }
    folders
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_or_damaged_is_named_with_where_it_was_looked_for() {
        let folder = tempfile::tempdir().unwrap();
        let found = |libraries: &[(&str, &str)]| {
            open_all(libraries, Some(folder.path().to_owned())).unwrap_err()
        };
        let missing = found(&[("libnot-there.so.13", "cuBLAS")]);
        let place = folder.path().display().to_string();
        for part in [
            "cuBLAS",
            "libnot-there.so.13",
            &place,
            "scripts/cuda-libs.sh",
            "/usr/local/cuda",
        ] {
            assert!(missing.contains(part), "{part}: {missing}");
        }
        std::fs::write(folder.path().join("libdamaged.so.13"), "half a libr").unwrap();
        let damaged = found(&[("libdamaged.so.13", "NVRTC")]);
        assert!(
            damaged.contains("file too short") && damaged.contains(&place),
            "{damaged}"
        );
    }

    #[test]
    fn what_was_opened_is_what_is_called() {
        use crate::gpu::compiler;
        use cudarc::cublas::sys::{cublasGetProperty, libraryPropertyType_t::MAJOR_VERSION};
        if let Err(why) = open_toolkit() {
            println!("not run: {why}");
            return;
        }
        let mut major = 0;
        // SAFETY: the number is written and nothing else.
        let status = unsafe { cublasGetProperty(MAJOR_VERSION, &mut major) };
        status.result().unwrap();
        // Beside cuBLAS the compiler must still be itself.
        compiler::compile(&compiler::program(crate::Dtype::F32), (9, 0)).unwrap();
        assert_eq!((major, compiler::version().unwrap().0), (13, 13));
    }

    #[test]
    fn the_program_links_no_library_of_cuda() {
        let program = std::env::current_exe().unwrap();
        let output = std::process::Command::new("readelf")
            .arg("-d")
            .arg(&program)
            .output();
        let text = String::from_utf8(output.unwrap().stdout).unwrap();
        let needed: Vec<&str> = text
            .lines()
            .filter(|line| line.contains("NEEDED"))
            .collect();
        assert!(needed.iter().any(|line| line.contains("libc.so")), "{text}");
        let of_cuda = |line: &&&str| ["cuda", "cublas", "nvrtc"].iter().any(|l| line.contains(l));
        assert_eq!(needed.iter().find(of_cuda), None);
    }
}
