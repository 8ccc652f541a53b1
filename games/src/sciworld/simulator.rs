//! The simulator: a Java process that holds the worlds of many sessions.
//!
//! Its worlds share state while they are stepped, so that two steps at once spoil each other (of 384
//! answers of twelve sessions played at once, 93 to 177 were wrong); one after another they do not.
//! So one connection serves all sessions of a process, a call at a time.
//!
//! The order in which a room lists its things, and in which an ambiguous action is asked back, comes
//! from the identity hashes of Java objects, which differ between processes. Java is asked for equal
//! ones (`-XX:hashCode=2`), so that the order is that of insertion: the same actions give the same
//! bytes in every process.
//!
//! The process ends with its standard input, so it outlives neither this value nor, should this
//! process be killed, its parent.

use std::io::{BufRead, BufReader, ErrorKind};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Duration;

use super::gateway::{Argument, Gateway, Reply};

/// The version whose texts, tasks and scores AgentGym's server has.
pub(crate) const VERSION: &str = "1.2.3";
const CLASS: &str = "scienceworld.runtime.pythonapi.PythonInterface";
/// A JVM starts in a second, on a busy machine in some ten.
const START_MAX: Duration = Duration::from_secs(120);
/// How much of what Java says is kept for a message.
const SAID_MAX: usize = 2000;

/// What a process is started with.
#[derive(Clone, Debug)]
pub(crate) struct Launch {
    pub(crate) java: PathBuf,
    pub(crate) jar: PathBuf,
    pub(crate) memory_mb: u64,
}

/// A running process. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct Simulator {
    /// `None` once a call has failed: the process is gone then, and its worlds with it.
    gateway: Mutex<Option<Gateway>>,
    /// Objects that nobody uses any more. They are freed before the next call, because the place
    /// where a session ends may not wait.
    unused: Mutex<Vec<String>>,
    child: Mutex<Child>,
    _folder: Folder,
}

/// Where the simulator writes a list of its kinds of objects, unasked. Removed when dropped.
#[derive(Debug)]
struct Folder(PathBuf);

impl Folder {
    fn new() -> std::io::Result<Self> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("agentgym-sciworld-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A world of its own in a simulator.
#[derive(Debug)]
pub(crate) struct Interface {
    simulator: Arc<Simulator>,
    /// Its name in the gateway.
    name: String,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Simulator {
    /// Starts a process. `Err` says what is wrong and what to do.
    pub(crate) fn start(launch: &Launch) -> Result<Arc<Self>, String> {
        let (java, jar) = (launch.java.display(), launch.jar.display());
        let path = std::path::absolute(&launch.jar)
            .map_err(|error| format!("{jar} is no path: {error}"))?;
        let folder = Folder::new().map_err(|error| format!("no temporary folder: {error}"))?;
        let mut command = Command::new(&launch.java);
        command
            .arg(format!("-Xmx{}m", launch.memory_mb))
            .args(["-XX:+UseSerialGC", "-XX:+UnlockExperimentalVMOptions"])
            .args(["-XX:hashCode=2", "-Dfile.encoding=UTF-8", "-cp"])
            .arg(path)
            .args(["py4j.GatewayServer", "--die-on-broken-pipe", "0"])
            .current_dir(&folder.0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|error| match error.kind() {
            ErrorKind::NotFound => format!(
                "there is no Java called {java}; install one (Debian: apt-get install \
                 default-jre-headless) or name it with --java"
            ),
            _ => format!("{java} cannot be started: {error}"),
        })?;
        let out = child.stdout.take().map(BufReader::new);
        let said = child.stderr.take().map(heard);
        let (sender, first) = mpsc::channel();
        // What the simulator prints later is read too: a full pipe would stop it.
        std::thread::spawn(move || {
            let mut lines = out
                .into_iter()
                .flat_map(BufRead::lines)
                .map_while(Result::ok);
            if let Some(line) = lines.next() {
                let _ = sender.send(line);
            }
            lines.for_each(drop);
        });
        let line = first.recv_timeout(START_MAX);
        let port = line.ok().and_then(|line| line.trim().parse().ok());
        let connected = port.and_then(|port| Gateway::connect(port).ok());
        let Some(gateway) = connected else {
            let _ = child.kill();
            let _ = child.wait();
            let said = said.map(|said| lock(&said).trim().to_owned());
            return Err(format!(
                "{java} opened no gateway with {jar}; is it scienceworld.jar of scienceworld \
                 {VERSION} from PyPI? Java said {:?}",
                said.unwrap_or_default()
            ));
        };
        let simulator = Arc::new(Self {
            gateway: Mutex::new(Some(gateway)),
            unused: Mutex::default(),
            child: Mutex::new(child),
            _folder: folder,
        });
        simulator.check_version(&launch.jar)?;
        Ok(simulator)
    }

    fn check_version(self: &Arc<Self>, jar: &Path) -> Result<(), String> {
        let other = |found: &str| {
            format!(
                "{} is {found}; give scienceworld.jar of scienceworld {VERSION} (pip download \
                 --no-deps scienceworld=={VERSION}, and unzip the wheel)",
                jar.display()
            )
        };
        let world = self.interface().map_err(|why| other(&why))?;
        let mut object = world.name.clone();
        for method in ["getClass", "getPackage"] {
            match self.called(&object, method, &[])? {
                Reply::Object(next) => object = next,
                found => {
                    return Err(other(&format!(
                        "a JAR that answers {method} with {found:?}"
                    )));
                }
            }
        }
        match self.called(&object, "getImplementationVersion", &[])? {
            Reply::Text(version) if version == VERSION => Ok(()),
            Reply::Text(version) => Err(other(&format!("ScienceWorld {version}"))),
            _ => Err(other("a ScienceWorld that names no version")),
        }
    }

    /// A new world.
    pub(crate) fn interface(self: &Arc<Self>) -> Result<Interface, String> {
        match self.with(|gateway| gateway.construct(CLASS))? {
            Reply::Object(name) => Ok(Interface {
                simulator: Arc::clone(self),
                name,
            }),
            _ => Err("a JAR without ScienceWorld's simulator".to_owned()),
        }
    }

    /// Whether its process still answers.
    pub(crate) fn is_alive(&self) -> bool {
        lock(&self.gateway).is_some()
    }

    fn called(
        &self,
        object: &str,
        method: &str,
        arguments: &[Argument<'_>],
    ) -> Result<Reply, String> {
        self.with(|gateway| gateway.call(object, method, arguments))
    }

    fn with<T>(&self, ask: impl FnOnce(&mut Gateway) -> Result<T, String>) -> Result<T, String> {
        let mut held = lock(&self.gateway);
        let Some(gateway) = &mut *held else {
            return Err("the simulator has ended".to_owned());
        };
        let unused = std::mem::take(&mut *lock(&self.unused));
        let forgotten = unused.iter().try_for_each(|name| gateway.forget(name));
        let answer = forgotten.and_then(|()| ask(gateway));
        if let Err(why) = &answer {
            tracing::warn!(why, "the simulator is given up");
            *held = None;
            let _ = lock(&self.child).kill();
        }
        answer.map_err(|why| format!("the simulator {why}"))
    }
}

impl Drop for Simulator {
    fn drop(&mut self) {
        let mut child = lock(&self.child);
        let _ = child.kill();
        let _ = child.wait();
    }
}

impl Interface {
    /// Calls one of its methods.
    pub(crate) fn call(&self, method: &str, arguments: &[Argument<'_>]) -> Result<Reply, String> {
        self.simulator.called(&self.name, method, arguments)
    }

    /// The texts of a list.
    pub(crate) fn list(&self, method: &str) -> Result<Vec<String>, String> {
        let Reply::Object(list) = self.call(method, &[])? else {
            return Err(format!("the simulator gave no list for {method}"));
        };
        // One call instead of one for each entry.
        let parts = [Argument::Text("\n"), Argument::Object(&list)];
        let joined = self.simulator.called("z:java.lang.String", "join", &parts);
        lock(&self.simulator.unused).push(list);
        match joined? {
            Reply::Text(text) if text.is_empty() => Ok(Vec::new()),
            Reply::Text(text) => Ok(text.split('\n').map(str::to_owned).collect()),
            other => Err(format!("the simulator gave {other:?} for {method}")),
        }
    }

    /// Its name in the gateway.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }
}

impl Drop for Interface {
    fn drop(&mut self) {
        lock(&self.simulator.unused).push(std::mem::take(&mut self.name));
    }
}

/// The last that a process says, read while it runs.
fn heard(mut from: impl std::io::Read + Send + 'static) -> Arc<Mutex<String>> {
    let said = Arc::new(Mutex::new(String::new()));
    let kept = Arc::clone(&said);
    std::thread::spawn(move || {
        let mut bytes = [0; 1024];
        while let Ok(count @ 1..) = from.read(&mut bytes) {
            let mut kept = lock(&kept);
            if kept.len() < SAID_MAX {
                kept.push_str(&String::from_utf8_lossy(&bytes[..count]));
            }
        }
    });
    said
}
