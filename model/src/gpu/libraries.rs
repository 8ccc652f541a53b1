//! CUDA's libraries, opened on demand. The program does not link them, so it starts without
//! them. `cudarc` looks the driver up by its name, and panics if it is missing, so that it is opened
//! here first; cuBLAS and NVRTC are called through the handles that are opened here.

use std::collections::BTreeSet;
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use super::functions::{Compiling, Products};

/// The environment variable that names a folder to search before all others.
pub(super) const FOLDER_VARIABLE: &str = "AGENTGYM_CUDA_LIBS";

/// The driver's library; it comes with the driver only.
const DRIVER: &str = "libcuda.so.1";

/// Libraries of products in the order of their dependencies, and the compiler: of any CUDA 13,
/// whose machine code every driver for CUDA 13 accepts.
const PRODUCTS: [&str; 2] = ["libcublasLt.so.13", "libcublas.so.13"];
const COMPILER: &str = "libnvrtc.so.13";

/// Opens the driver's library.
///
/// # Errors
/// There is no driver.
pub(super) fn open_driver() -> Result<(), String> {
    static OPENED: OnceLock<Result<(), String>> = OnceLock::new();
    let opened = OPENED.get_or_init(|| {
        let driver = open(Path::new(DRIVER)).map(ManuallyDrop::new);
        let no_driver = |e| format!("there is no NVIDIA driver here ({e})");
        driver.map(|_| ()).map_err(no_driver)
    });
    opened.clone()
}

/// Opens the libraries for computing.
///
/// # Errors
/// One is not found; the message names it and the places that were searched.
pub(super) fn open_toolkit() -> Result<(Products, Compiling), String> {
    let places = Places::new(named_folder());
    let [core, products] = PRODUCTS.map(|name| places.open(name, "cuBLAS"));
    core?;
    // SAFETY: it was opened by cuBLAS' name, and is never closed.
    let products = unsafe { Products::of(&products?.library) }?;
    Ok((products, places.open_compiler()?))
}

/// Opens the compiler of kernels alone.
#[cfg(test)]
pub(super) fn open_compiler() -> Result<Compiling, String> {
    Places::new(named_folder()).open_compiler()
}

fn named_folder() -> Option<PathBuf> {
    std::env::var_os(FOLDER_VARIABLE).map(PathBuf::from)
}

/// Where libraries are searched for.
struct Places {
    folders: Vec<PathBuf>,
    /// Folders that are searched before the loader's path.
    before_loader: usize,
}

/// A library that is open for as long as the process is.
struct Opened {
    library: ManuallyDrop<Library>,
    /// `None` where the loader found it.
    folder: Option<PathBuf>,
}

impl Places {
    /// A named folder comes first, then the loader's path.
    fn new(named: Option<PathBuf>) -> Self {
        Places {
            before_loader: usize::from(named.is_some()),
            folders: folders(named),
        }
    }

    fn open(&self, name: &str, product: &str) -> Result<Opened, String> {
        let in_folders = self.folders.iter().map(|folder| folder.join(name));
        let mut candidates: Vec<PathBuf> = in_folders.filter(|path| path.exists()).collect();
        candidates.insert(
            self.before_loader.min(candidates.len()),
            PathBuf::from(name),
        );
        let mut complaints = Vec::new();
        for path in &candidates {
            match open(path) {
                Ok(library) => {
                    let folder = path.parent().filter(|f| !f.as_os_str().is_empty());
                    return Ok(Opened {
                        library: ManuallyDrop::new(library),
                        folder: folder.map(Path::to_owned),
                    });
                }
                Err(e) => complaints.push(e),
            }
        }
        let folders = self.folders.iter().map(|f| f.display().to_string());
        Err(format!(
            "{product} is not found: {name} is neither on the loader's path nor in {} ({}); \
             scripts/cuda-libs.sh fetches it, {FOLDER_VARIABLE} names the folder",
            folders.collect::<Vec<_>>().join(", "),
            complaints.join("; "),
        ))
    }

    /// Opens the compiler, and the file of built-in functions that it loads by a name with its own
    /// minor version, from the compiler's folder.
    fn open_compiler(&self) -> Result<Compiling, String> {
        let compiler = self.open(COMPILER, "NVRTC")?;
        // SAFETY: it was opened by NVRTC's name, and is never closed.
        let calls = unsafe { Compiling::of(&compiler.library) }?;
        let (mut major, mut minor) = (0, 0);
        // SAFETY: only both numbers are written.
        let status = unsafe { (calls.nvrtcVersion)(&raw mut major, &raw mut minor) };
        if status != 0 {
            return Err(format!("NVRTC: does not tell its version: {status}"));
        }
        let places = match compiler.folder {
            Some(folder) => Places {
                folders: vec![folder],
                before_loader: 1,
            },
            None => Places {
                folders: self.folders.clone(),
                before_loader: 0,
            },
        };
        let name = format!("libnvrtc-builtins.so.{major}.{minor}");
        places.open(&name, "NVRTC")?;
        Ok(calls)
    }
}

fn open(path: &Path) -> Result<Library, String> {
    // Local: other libraries must not resolve their symbols here by accident.
    // SAFETY: NVIDIA's libraries may be loaded at any time; their initialisers start nothing.
    // The loader's own message is the source of "dlopen failed".
    unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) }
        .map_err(|e| std::error::Error::source(&e).map_or(e.to_string(), |why| why.to_string()))
}

/// Where CUDA's libraries may be, in order: the named folder, a toolkit, PyPI wheels.
fn folders(named: Option<PathBuf>) -> Vec<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let mut folders: Vec<PathBuf> = named.into_iter().collect();
    let homes = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(variable);
    let toolkits = homes.chain(["/usr/local/cuda-13.0".into(), "/usr/local/cuda".into()]);
    folders.extend(toolkits.map(|home: PathBuf| home.join("lib64")));
    let pythons = ["VIRTUAL_ENV", "CONDA_PREFIX"]
        .into_iter()
        .filter_map(variable);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let pythons = pythons.chain(python_prefixes(std::env::split_paths(&path)));
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
    let mut seen = BTreeSet::new();
    folders.retain(|folder| seen.insert(folder.clone()));
    folders
}

/// Where the `python3` of a search path may have its packages: the prefix of the program, and of each
/// program that it is a symbolic link to. A virtual environment's is a link to another's.
fn python_prefixes(mut path: impl Iterator<Item = PathBuf>) -> Vec<PathBuf> {
    let mut program = path
        .find(|folder| folder.join("python3").is_file())
        .map(|folder| folder.join("python3"));
    let mut prefixes = Vec::new();
    // A circle of links is no file, so this ends.
    while let Some(python) = program {
        let bin = python.parent().unwrap_or(Path::new("/"));
        prefixes.extend(bin.parent().map(Path::to_owned));
        program = std::fs::read_link(&python).ok().map(|to| bin.join(to));
    }
    prefixes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_or_damaged_is_named_with_where_it_was_looked_for() {
        let folder = tempfile::tempdir().unwrap();
        let places = Places::new(Some(folder.path().to_owned()));
        let found = |name, product| places.open(name, product).map(|_| ()).unwrap_err();
        let missing = found("libnot-there.so.13", "cuBLAS");
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
        let damaged = found("libdamaged.so.13", "NVRTC");
        assert!(
            damaged.contains("file too short") && damaged.contains(&place),
            "{damaged}"
        );
    }

    /// A machine's `python3` is a link to a virtual environment's, and that to the system's.
    #[test]
    fn packages_of_the_python_in_the_path_are_searched() {
        let folder = tempfile::tempdir().unwrap();
        let [links, environment, system] = ["links/bin", "venv/bin", "system/bin"].map(|bin| {
            let bin = folder.path().join(bin);
            std::fs::create_dir_all(&bin).unwrap();
            bin
        });
        std::fs::write(system.join("python3.12"), "").unwrap();
        let link = std::os::unix::fs::symlink::<PathBuf, PathBuf>;
        link(system.join("python3.12"), environment.join("python3")).unwrap();
        link("../../venv/bin/python3".into(), links.join("python3")).unwrap();
        let path = [folder.path().join("nothing"), links, system.clone()];
        let found = python_prefixes(path.into_iter());
        let names: Vec<PathBuf> = ["links", "venv", "system"]
            .map(|name| folder.path().join(name))
            .into();
        let canonical = |all: Vec<PathBuf>| -> Vec<PathBuf> {
            all.iter().map(|p| p.canonicalize().unwrap()).collect()
        };
        assert_eq!(canonical(found), canonical(names));
        assert_eq!(python_prefixes(std::iter::empty()), Vec::<PathBuf>::new());
    }

    /// A compiler of version 13.7 needs the built-in functions of 13.7, and takes them from its own
    /// folder.
    #[test]
    fn the_compilers_built_in_functions_are_of_its_own_version() {
        let folder = tempfile::tempdir().unwrap();
        let build = |name: &str, text: &str| {
            let source = folder.path().join("source.c");
            std::fs::write(&source, text).unwrap();
            let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
            let mut command = std::process::Command::new(compiler);
            command.args(["-shared", "-fPIC", "-o"]);
            let status = command.arg(folder.path().join(name)).arg(source).status();
            assert!(status.unwrap().success());
        };
        let others = [
            "CreateProgram",
            "DestroyProgram",
            "CompileProgram",
            "GetCUBINSize",
        ];
        let more = ["GetCUBIN", "GetProgramLogSize", "GetProgramLog"];
        let others = others
            .iter()
            .chain(&more)
            .map(|name| format!("void nvrtc{name}() {{}}\n"));
        let version =
            "int nvrtcVersion(int* major, int* minor) { *major = 13; *minor = 7; return 0; }";
        build(
            COMPILER,
            &format!("{}{version}", others.collect::<String>()),
        );
        let places = Places::new(Some(folder.path().to_owned()));
        let missing = places.open_compiler().map(|_| ()).unwrap_err();
        assert!(
            missing.contains("libnvrtc-builtins.so.13.7 is neither"),
            "{missing}"
        );
        build("libnvrtc-builtins.so.13.0", "int other;");
        assert_eq!(places.open_compiler().map(|_| ()).unwrap_err(), missing);
        build("libnvrtc-builtins.so.13.7", "int own;");
        places.open_compiler().unwrap();
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
