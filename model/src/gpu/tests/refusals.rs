//! Every reason why a GPU cannot be used, and what failing calls mean, with CUDA's libraries faked. A
//! process opens its driver once, so each case has a process of its own.

use std::path::Path;
use std::process::Command;

use crate::gpu::backend::Gpu;
use crate::gpu::products::Dense;
use crate::{Device, Dtype, Error, Result};

#[test]
#[ignore = "the other process of a test below"]
fn says_what_is_chosen() {
    println!("{}", Device::auto(Dtype::F32).unwrap().1);
}

#[test]
#[ignore = "the other process of a test below"]
fn says_what_calls_answer() {
    let gpu = crate::gpu::open(0, Dtype::F32).unwrap();
    let launched = |gpu: &Gpu| {
        let numbers = gpu.buffer::<f32>(8)?;
        numbers.add(&numbers)
    };
    let multiplied = |gpu: &Gpu| {
        let weight = gpu.upload_operands(&[1.0; 6])?;
        let x = gpu.matrix(1, 2)?;
        x.times(Dense::new(&weight, 2, 3)).map(drop)
    };
    let said = |done: Result<()>| match done {
        Ok(()) => "done",
        Err(Error::DeviceFull { .. }) => "full",
        Err(Error::DeviceLost { .. }) => "lost",
        Err(_) => "refused",
    };
    let product = said(multiplied(&gpu));
    println!("computing on a fake: {} {product}", said(launched(&gpu)));
}

/// Builds the fake under these names.
fn build(folder: &Path, names: &[&str], major: u32) {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/src/gpu/tests/fake_driver.c");
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    for name in names {
        let mut command = Command::new(&compiler);
        command.args(["-w", "-shared", "-fPIC", &format!("-DMAJOR={major}"), "-o"]);
        let status = command.arg(folder.join(name)).arg(source).status();
        assert!(status.unwrap().success());
    }
}

const DRIVER: &str = "libcuda.so.1";
const LIBRARIES: [&str; 4] = [
    "libcublasLt.so.13",
    "libcublas.so.13",
    "libnvrtc.so.13",
    "libnvrtc-builtins.so.13.7",
];

/// The line of a test of this file in a process with these folders and variables.
fn line(test: &str, loader: &Path, libraries: &Path, variables: &[(&str, &str)]) -> String {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", &format!("gpu::tests::refusals::{test}")]);
    command.args(["--ignored", "--nocapture"]);
    command
        .env("LD_LIBRARY_PATH", loader)
        .env("AGENTGYM_CUDA_LIBS", libraries)
        .env("AGENTGYM_CUDA_CACHE", libraries)
        .envs(variables.iter().copied());
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let choice = text
        .lines()
        .find_map(|line| line.find("computing on").map(|at| &line[at..]));
    choice.unwrap_or_else(|| panic!("{text}")).to_owned()
}

#[test]
fn every_refusal_says_why_in_one_line() {
    let folder = tempfile::tempdir().unwrap();
    build(folder.path(), &[DRIVER], 13);
    let empty = tempfile::tempdir().unwrap();
    let line = |variable, path: &Path| line("says_what_is_chosen", path, empty.path(), &[variable]);
    for (variable, reason) in [
        (("FAKE_INIT", "100"), "the NVIDIA driver finds no GPU"),
        (
            ("FAKE_INIT", "999"),
            "the NVIDIA driver answers CUDA_ERROR_FAKE (nothing is here)",
        ),
        (
            ("FAKE_VERSION", "12080"),
            "knows CUDA 12.8, 13.0 is needed: install driver 580",
        ),
        (("FAKE_COUNT", "0"), "the machine has 0 GPU(s)"),
        (
            ("FAKE_MAJOR", "7"),
            "the Fake GPU has compute capability 7.0, 8.0 is needed",
        ),
        (("FAKE_POOLS", "0"), "the Fake GPU has no memory pools"),
    ] {
        let found = line(variable, folder.path());
        assert!(
            found.starts_with("computing on the processor in f32: "),
            "{found}"
        );
        assert!(found.contains(reason), "{found}");
    }
    // Without the fake it depends on this machine.
    let found = line(("FAKE_COUNT", "0"), empty.path());
    let no_driver = found.contains("there is no NVIDIA driver here");
    assert!(no_driver || !found.contains("0 GPU(s)"), "{found}");
}

/// Images with CUDA 12 have its libraries under names without a version in the loader's path.
#[test]
fn libraries_of_another_version_in_the_loaders_path_are_not_called() {
    let [loader, libraries] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let (loader, libraries) = (loader.path(), libraries.path());
    build(loader, &[DRIVER], 13);
    build(
        loader,
        &["libcublas.so", "libnvrtc.so", "libcublas.so.12"],
        12,
    );
    build(libraries, &LIBRARIES, 13);
    let found = line("says_what_is_chosen", loader, libraries, &[]);
    assert_eq!(found, "computing on cuda:0 (Fake GPU, CUDA 13.7) in f32");
    // Nor are those that have the right name and another version.
    build(libraries, &["libcublas.so.13"], 12);
    let found = line("says_what_is_chosen", loader, libraries, &[]);
    assert!(
        found.contains("the cuBLAS that is found is of CUDA 12"),
        "{found}"
    );
}

/// Memory is full (2), for an allocation or a launch; a kernel's address is wrong (700); a product lacks memory (3, or 14, as a
/// kernel that is loaded on first use says), or is not supported (15).
#[test]
fn a_call_that_fails_is_tried_again_and_a_device_is_lost_only_if_it_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    build(folder, &[DRIVER], 13);
    build(folder, &LIBRARIES, 13);
    let answers = |variables: &[(&str, &str)]| {
        let found = line("says_what_calls_answer", folder, folder, variables);
        found
            .strip_prefix("computing on a fake: ")
            .unwrap()
            .to_owned()
    };
    let lost = ("FAKE_SYNC", "700");
    for (variables, expected) in [
        (&[][..], "done done"),
        (&[("FAKE_ALLOC", "2:1")], "done done"),
        (&[("FAKE_ALLOC", "2:99")], "full full"),
        (&[("FAKE_LAUNCH", "2:1")], "done done"),
        (&[("FAKE_LAUNCH", "2:9")], "full done"),
        (&[("FAKE_LAUNCH", "700:1")], "refused done"),
        (&[("FAKE_LAUNCH", "700:1"), lost], "lost done"),
        (&[("FAKE_GEMM", "14:1")], "done done"),
        (&[("FAKE_GEMM", "3:9")], "done full"),
        (&[("FAKE_GEMM", "14:9")], "done full"),
        (&[("FAKE_GEMM", "15:9")], "done refused"),
        (&[("FAKE_GEMM", "14:9"), lost], "done lost"),
    ] {
        assert_eq!(answers(variables), expected, "{variables:?}");
    }
}
