//! scripts/gpu-check.sh on a machine without a GPU: a kit of small scripts in place of our programs, and
//! fake tools in the path. Whatever happens to a section, what was learnt before it is kept, and each
//! end has a word of its own.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use agentgym_tests::program::workspace;

/// A bench that answers as the real one where it finds that all is well.
const SPEED: &str =
    "echo 'opened /opt/libcublas.so.13'\necho '0.5b  decode-64      20000 tokens/s'";
const TESTS: &str = "echo 'test result: ok. 44 passed'";

struct Kit {
    folder: tempfile::TempDir,
}

impl Kit {
    fn new() -> Self {
        let kit = Kit {
            folder: tempfile::tempdir().unwrap(),
        };
        for part in ["kit/bin", "kit/tools", "tools", "work"] {
            std::fs::create_dir_all(kit.path(part)).unwrap();
        }
        let script = workspace().join("scripts/gpu-check.sh");
        std::fs::copy(script, kit.path("kit/gpu-check.sh")).unwrap();
        let predictions = workspace().join("tools/gpu_predictions.tsv");
        std::fs::copy(predictions, kit.path("kit/tools/gpu_predictions.tsv")).unwrap();
        std::fs::write(kit.path("kit/VERSION"), "0123456789ab\n").unwrap();
        kit.script("kit/bin/speed", SPEED);
        kit.script("kit/bin/model-tests", TESTS);
        kit.script("tools/nvidia-smi", "echo 'NVIDIA H200, 143771 MiB, 580.1'");
        kit.seal();
        kit
    }

    fn path(&self, part: &str) -> PathBuf {
        self.folder.path().join(part)
    }

    fn script(&self, part: &str, text: &str) {
        let path = self.path(part);
        std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
    }

    /// Writes the digests of the kit's files, as `pack` does.
    fn seal(&self) {
        let seal = "find . -type f ! -name SHA256SUMS | sort | xargs sha256sum > SHA256SUMS";
        let mut command = Command::new("sh");
        command.current_dir(self.path("kit")).args(["-c", seal]);
        assert!(command.status().unwrap().success());
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(self.path("kit/gpu-check.sh"));
        let path = std::env::var("PATH").unwrap();
        command
            .args(words)
            .env("PATH", format!("{}:{path}", self.path("tools").display()))
            .env("OUT", self.path("out"))
            .env("WORK", self.path("work"))
            .env("DEVICE", "cuda:0")
            .env("SECONDS_MAX", "20");
        command
    }

    fn run(&self, words: &[&str]) -> Output {
        self.command(words).output().unwrap()
    }

    fn table(&self) -> String {
        std::fs::read_to_string(self.path("out/table.txt")).unwrap()
    }
}

/// The word and the result of a section in a table.
fn row<'a>(table: &'a str, section: &str) -> (&'a str, &'a str) {
    let line = table
        .lines()
        .find(|line| line.split(' ').next() == Some(section));
    let line = line.unwrap_or_else(|| panic!("{section}: {table}"));
    (line[15..24].trim(), line[36..].trim())
}

#[test]
fn each_section_ends_with_a_word_and_keeps_its_log() {
    let kit = Kit::new();
    // It prints and passes; hangs, with a child of its own; and fails.
    kit.script(
        "tools/compute-sanitizer",
        "case $2 in memcheck) echo '= ERROR SUMMARY: 0 errors' ;; *) echo begun; sleep 600 & sleep 600 ;; esac",
    );
    kit.script("tools/ncu", "echo 'no permission to read counters'\nexit 3");
    kit.script(
        "kit/bin/agentgym-submit",
        "echo 'the disk is full' >&2\nexit 3",
    );
    kit.seal();
    let words = [
        "machine",
        "memcheck",
        "racecheck",
        "ncu:bf16",
        "agree:f32",
        "tests",
        "resume",
    ];
    let begun = Instant::now();
    let output = kit
        .command(&words)
        .env("SECONDS_MAX", "3")
        .output()
        .unwrap();
    assert!(begun.elapsed() < Duration::from_secs(60));
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stdout).unwrap();
    let table = kit.table();
    assert!(said.ends_with(&table), "the table comes last: {said}");
    for (section, word, result) in [
        ("machine", "ok", "NVIDIA H200"),
        ("memcheck", "ok", "ERROR SUMMARY: 0 errors"),
        ("racecheck", "HUNG", "begun"),
        ("ncu:bf16", "FAILED", "no permission to read counters"),
        ("agree:f32", "ok", "the same bits"),
        ("tests", "ok", "44 passed"),
        ("resume", "FAILED", "the disk is full"),
    ] {
        let found = row(&table, section);
        assert_eq!(found.0, word, "{table}");
        assert!(found.1.contains(result), "{result}: {table}");
    }
    let log = std::fs::read_to_string(kit.path("out/sanitizer.log")).unwrap();
    assert!(
        log.contains("ERROR SUMMARY") && log.contains("begun"),
        "{log}"
    );
}

#[test]
fn what_a_machine_lacks_is_not_here_and_fails_nothing() {
    let kit = Kit::new();
    let mut command = kit.command(&["memcheck", "ncu", "tests", "candle"]);
    let output = command.env("DEVICE", "cpu").output().unwrap();
    let table = kit.table();
    assert_eq!(output.status.code(), Some(0), "{table}");
    let lacking = [
        ("memcheck", "compute-sanitizer"),
        ("ncu", "ncu"),
        ("tests", "needs a GPU"),
    ];
    for (section, what) in lacking {
        let (word, result) = row(&table, section);
        assert!(word == "not here" && result.contains(what), "{table}");
    }
    let packed = kit.run(&["candle"]);
    assert_eq!(packed.status.code(), Some(0));
    assert!(row(&kit.table(), "candle").1.contains("without nvcc"));
    // A folder that has no room, whatever the machine has.
    kit.script("tools/df", "echo Avail; echo 100");
    assert_eq!(kit.run(&["iteration"]).status.code(), Some(1));
    let table = kit.table();
    let (word, result) = row(&table, "iteration");
    assert!(word == "no room" && result.contains("100 MiB"), "{table}");
}

/// The probe and the sanitizer still say something of a card on which our program fails.
#[test]
fn where_the_first_kernel_fails_only_what_explains_it_is_run() {
    let kit = Kit::new();
    let reason = "cuda:0 cannot be used: the Fake GPU has compute capability 7.5, 8.0 is needed";
    kit.script("kit/bin/speed", &format!("echo '{reason}' >&2\nexit 1"));
    kit.script(
        "tools/compute-sanitizer",
        "echo '= ERROR SUMMARY: 1 error'; exit 9",
    );
    kit.script("kit/tools/gpu_probe.py", "");
    kit.seal();
    let output = kit.run(&["first", "tests", "memcheck", "speed:bf16", "machine"]);
    assert_eq!(output.status.code(), Some(1));
    let table = kit.table();
    assert_eq!(row(&table, "first"), ("FAILED", reason));
    assert_eq!(row(&table, "tests").0, "skipped");
    assert_eq!(row(&table, "memcheck").0, "FAILED");
    assert_eq!(row(&table, "speed:bf16").0, "skipped");
    assert_eq!(row(&table, "machine").0, "ok");
}

#[test]
fn a_call_that_is_killed_leaves_the_table_of_what_was_done() {
    let kit = Kit::new();
    kit.script("kit/bin/speed", "echo begun; exec sleep 600");
    kit.seal();
    let mut command = kit.command(&["machine", "agree:bf16"]);
    let mut call = command.stdout(Stdio::null()).spawn().unwrap();
    let begun = Instant::now();
    let log = kit.path("out/agree.log");
    while !std::fs::read_to_string(&log).is_ok_and(|log| log.contains("begun")) {
        assert!(begun.elapsed() < Duration::from_secs(60), "{}", kit.table());
        std::thread::sleep(Duration::from_millis(20));
    }
    call.kill().unwrap();
    call.wait().unwrap();
    let table = kit.table();
    assert_eq!(row(&table, "machine").0, "ok");
    assert_eq!(row(&table, "agree:bf16").0, "running");
    // The section ends with its limit.
}

#[test]
fn a_full_disk_takes_files_and_not_what_was_learnt() {
    let kit = Kit::new();
    let out = kit.path("out");
    std::fs::create_dir(&out).unwrap();
    for file in ["table.txt", "machine.log", "agree.log"] {
        std::os::unix::fs::symlink("/dev/full", out.join(file)).unwrap();
    }
    let output = kit.run(&["machine", "agree:f32"]);
    let said = String::from_utf8(output.stdout).unwrap();
    let complaint = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{said}{complaint}");
    assert!(complaint.contains("cannot be written"), "{complaint}");
    let table = said.split("\n\n").last().unwrap();
    assert_eq!(row(table, "agree:f32").0, "ok", "{said}");
    assert!(said.contains("opened /opt/libcublas.so.13"), "{said}");
}

#[test]
fn a_kit_that_is_not_whole_and_words_that_mean_nothing_are_refused() {
    let kit = Kit::new();
    let refusal = |output: Output| {
        assert_eq!(output.status.code(), Some(2));
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(refusal(kit.run(&["sped"])).contains("no section sped"));
    assert!(refusal(kit.run(&["agree:f16"])).contains("f32 or bf16"));
    let shape = kit.command(&["machine"]).env("SHAPE", "70b").output();
    assert!(refusal(shape.unwrap()).contains("known are tiny, 0.5b and 3b"));
    kit.script("kit/bin/speed", "exit 0");
    let mixed = refusal(kit.run(&["machine"]));
    assert!(
        mixed.contains("bin/speed") && mixed.contains("unpack it again"),
        "{mixed}"
    );
}

/// In a checkout a kit of other sources is refused.
#[test]
fn a_kit_of_another_version_is_refused() {
    let kit = Kit::new();
    let checkout = kit.path("checkout");
    for folder in [
        "scripts",
        "tools",
        "configs",
        "model/src",
        "model/benches",
        "target",
    ] {
        std::fs::create_dir_all(checkout.join(folder)).unwrap();
    }
    let copy = |from: &Path, to: &str| std::fs::copy(from, checkout.join(to)).unwrap();
    copy(
        &workspace().join("scripts/gpu-check.sh"),
        "scripts/gpu-check.sh",
    );
    for file in ["Cargo.lock", "tools/gpu_probe.py", "tools/torch_speed.py"] {
        std::fs::write(checkout.join(file), "").unwrap();
    }
    let run = || {
        let mut command = Command::new(checkout.join("scripts/gpu-check.sh"));
        let output = command
            .arg("machine")
            .env("WORK", kit.path("work"))
            .output();
        let output = output.unwrap();
        (
            output.status.code(),
            String::from_utf8(output.stderr).unwrap(),
        )
    };
    let (code, none) = run();
    assert!(
        code == Some(2) && none.contains("scripts/gpu-check.sh pack"),
        "{none}"
    );
    std::fs::rename(kit.path("kit"), kit.path("gpu-check")).unwrap();
    let mut tar = Command::new("tar");
    tar.arg("-C").arg(kit.folder.path()).arg("-cJf");
    tar.arg(checkout.join("target/gpu-check.tar.xz"))
        .arg("gpu-check");
    assert!(tar.status().unwrap().success());
    let (code, other) = run();
    assert!(
        code == Some(2) && other.contains("of another version (0123456789ab"),
        "{other}"
    );
}

/// A machine may be held for ten minutes a call.
#[test]
fn the_limits_of_each_call_are_less_than_nine_minutes() {
    let kit = Kit::new();
    for call in ["1", "2", "3"] {
        let mut command = kit.command(&[call]);
        let output = command
            .env("SECONDS_MAX", "60")
            .env("DEVICE", "cpu")
            .output()
            .unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        let (_, sum) = said.split_once("at most ").unwrap();
        let (sum, _) = sum.split_once(" s in all").unwrap();
        assert!(sum.parse::<u32>().unwrap() < 540, "{said}");
    }
}
