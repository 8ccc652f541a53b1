//! Every reason why a GPU cannot be used, with a fake driver. A process opens its driver once, so
//! each reason is tested in its own process.

use std::path::Path;
use std::process::Command;

use crate::{Device, Dtype};

#[test]
#[ignore = "the other process of the test below"]
fn says_what_is_chosen() {
    println!("{}", Device::auto(Dtype::F32).unwrap().1);
}

fn build_driver(folder: &Path) {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/src/gpu/tests/fake_driver.c");
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let mut command = Command::new(compiler);
    command.args(["-w", "-shared", "-fPIC", "-o"]);
    let status = command
        .arg(folder.join("libcuda.so.1"))
        .arg(source)
        .status();
    assert!(status.unwrap().success());
}

#[test]
fn every_refusal_says_why_in_one_line() {
    let folder = tempfile::tempdir().unwrap();
    build_driver(folder.path());
    let empty = tempfile::tempdir().unwrap();
    let line = |variable: (&str, &str), path: &Path| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "gpu::tests::refusals::says_what_is_chosen"]);
        command.args(["--ignored", "--nocapture"]);
        command
            .env("LD_LIBRARY_PATH", path)
            .env(variable.0, variable.1);
        let output = command.output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let choice = text
            .lines()
            .find_map(|line| line.find("computing on").map(|at| &line[at..]));
        choice.unwrap_or_else(|| panic!("{text}")).to_owned()
    };
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
    ] {
        let found = line(variable, folder.path());
        assert!(found.starts_with("computing on the processor: "), "{found}");
        assert!(found.contains(reason), "{found}");
    }
    // Without the fake it depends on this machine.
    let found = line(("FAKE_COUNT", "0"), empty.path());
    let no_driver = found.contains("there is no NVIDIA driver here");
    assert!(no_driver || !found.contains("0 GPU(s)"), "{found}");
}
