//! `serve RUN|FOLDER`: a policy of a run, or one in a folder, behind OpenAI's HTTP API.

use crate::cli::{Global, ServeArgs};
use crate::credit::load_policy;
use crate::run::signals::Interrupts;
use crate::runs::RunView;
use crate::{Error, Result, text};
use agentgym_jobs::pipeline::policy_of;
use agentgym_model::{Device, Policy, gguf_at, import_line};
use agentgym_serve::{ServeOptions, ServedPolicy, start};
use agentgym_worker::SERVER_KEY_VARIABLE as KEY_VARIABLE;
use serde::Serialize;
use std::path::Path;

/// `serve RUN|FOLDER`, as one line.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct ServeDocument {
    url: String,
    model: String,
    context: usize,
}

/// Runs the command; without a run it is a folder that is served.
pub(crate) async fn serve(run: Option<RunView>, args: &ServeArgs, global: &Global) -> Result<()> {
    // What clients have to send as bearer, if it is set: workers send it.
    let key = std::env::var(KEY_VARIABLE)
        .ok()
        .filter(|key| !key.is_empty());
    if key.is_none() && !args.addr.ip().is_loopback() {
        return Err(Error::Usage(format!(
            "{} can be reached from other machines: set {KEY_VARIABLE} to a key that clients then have to send, \
             or give a loopback address (--addr 127.0.0.1:{})",
            args.addr,
            args.addr.port()
        )));
    }
    // A signal during loading ends it as well.
    let interrupts = Interrupts::listen();
    let loading = async {
        let device = Device::parse(&global.device, global.dtype);
        let device = device.map_err(|e| Error::Usage(e.to_string()))?;
        let served = match &run {
            None => of_folder(args)?,
            Some(view) => of_run(view, args.iteration).await?,
        };
        let policy = served.policy.on(&device);
        let policy = policy.map_err(|e| Error::Usage(e.to_string()))?;
        Ok::<_, Error>(ServedPolicy { policy, ..served })
    };
    let served = tokio::select! {
        served = loading => served?,
        () = interrupts.drain.cancelled() => return Ok(()),
    };
    let name = served.name.clone();
    let options = ServeOptions {
        address: args.addr,
        rows: args.rows as usize,
        waiting: args.waiting as usize,
        cache_tokens: args.cache_tokens as usize,
        threads: std::thread::available_parallelism().map_or(1, usize::from),
        key,
    };
    let server = start(served, &options).await.map_err(|e| {
        let addr = args.addr;
        Error::Usage(match e.kind() {
            std::io::ErrorKind::AddrInUse => format!(
                "{addr} is in use; is a server there already? Give another --addr, or port 0 for a free one"
            ),
            _ => format!("cannot listen on {addr}: {e}; give another --addr"),
        })
    })?;
    let url = format!("http://{}", server.address);
    if global.json {
        let context = server.context;
        text::emit_json_line(&ServeDocument {
            url,
            model: name,
            context,
        });
    } else {
        text::emit(&format!(
            "{url}/v1 serves {name}, up to {} tokens\nCtrl-C ends it, once what it is at is answered.",
            server.context
        ));
    }
    tokio::select! {
        ended = server.run(interrupts.drain.cancelled()) => {
            ended.map_err(|e| Error::Usage(format!("the server ended: {e}")))
        }
        () = interrupts.abort.cancelled() => Ok(()),
    }
}

/// Whether a path is given, and not a run.
pub(crate) fn is_folder(given: &str) -> Result<bool> {
    let path = Path::new(given);
    if path.join("config.json").is_file() {
        return Ok(true);
    }
    let shown = path.display();
    if let Some(file) = gguf_at(path) {
        return Err(Error::Usage(format!(
            "{} is a GGUF file, which is not served; {}",
            file.display(),
            import_line(&file)
        )));
    }
    if path.is_dir() {
        return Err(Error::Usage(format!(
            "{shown} is no model's folder: it has no config.json. Give one in Hugging Face's layout, or a run \
             (`agentgym-submit export RUN --iteration N --to DIR` writes such a folder, DIR/policy_after)"
        )));
    }
    match given.contains('/') || path.exists() {
        false => Ok(false),
        true => Err(Error::Usage(format!(
            "{shown} is no folder; give the folder of a model, with config.json, or a run's id"
        ))),
    }
}

fn of_folder(args: &ServeArgs) -> Result<ServedPolicy> {
    if args.iteration.is_some() {
        return Err(Error::Usage(format!(
            "{} is a folder and has no iterations; leave --iteration out",
            args.policy
        )));
    }
    let path = Path::new(&args.policy);
    let policy = Policy::load(path, &Device::cpu()).map_err(|e| Error::Usage(e.to_string()))?;
    // `.` and links are called by where they lead.
    let name = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let name = name.file_name().unwrap_or(name.as_os_str());
    let name = name.to_string_lossy().into_owned();
    Ok(ServedPolicy { policy, name })
}

/// The policy of an iteration, else the newest one.
async fn of_run(view: &RunView, iteration: Option<u32>) -> Result<ServedPolicy> {
    let iteration = match iteration {
        Some(n) => n,
        None => newest(view).await?,
    };
    view.iteration_parts(iteration)?;
    let made = view.committed(policy_of(&view.plan, iteration)).await?;
    let policy = load_policy(view, &made).await?;
    let name = format!("{}:{iteration}", view.plan.run);
    Ok(ServedPolicy { policy, name })
}

async fn newest(view: &RunView) -> Result<u32> {
    let commits = view.commits().await?;
    let made = |n: &u32| commits.contains(&policy_of(&view.plan, *n));
    // One that is not there yet is said as for any other iteration.
    Ok((0..=view.plan.iterations).rev().find(made).unwrap_or(0))
}
