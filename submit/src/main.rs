//! The `agentgym-submit` program: parses arguments, runs one command, and turns its result into a
//! message and an exit code.

use agentgym_submit::cli::parse;
use agentgym_submit::text::{folded, tell, tell_whole};
use agentgym_submit::{Exit, execute};
use agentgym_text::Visible;
use console::Term;
use std::io::{ErrorKind, Write as _};
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    // SAFETY: no other thread has begun.
    unsafe { agentgym_worker::before_threads() };
    let cli = match parse(std::env::args_os()) {
        Ok(cli) => cli,
        Err(e) if e.use_stderr() && std::env::args_os().any(|word| word == "--json") => {
            let message = e.render().to_string();
            let message = message.trim().trim_start_matches("error: ");
            tell_whole(&Exit::Config.document(message).to_string());
            return ExitCode::from(Exit::Config as u8);
        }
        Err(e) => {
            // If the pipe is closed, there is no reader for the message.
            let unwritten = (shown(&e).err()).filter(|e| e.kind() != ErrorKind::BrokenPipe);
            if let Some(e) = unwritten {
                tell(&format!("error: cannot write the help: {e}"));
                return ExitCode::from(Exit::Store as u8);
            }
            return ExitCode::from(u8::try_from(e.exit_code()).unwrap_or(2));
        }
    };
    // Progress has its own display; the log is for debugging.
    let filter = tracing_subscriber::EnvFilter::try_from_env("AGENTGYM_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("off"));
    tracing_subscriber::fmt()
        .with_writer(|| Visible(std::io::stderr()))
        // A closed log pipe must not cause a panic.
        .log_internal_errors(false)
        .with_env_filter(filter)
        .init();
    let runtime = match tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(e) => {
            tell(&format!("error: cannot start: {e}"));
            return ExitCode::FAILURE;
        }
    };
    let json = cli.global.json;
    let ended = runtime.block_on(execute(cli));
    // Compute threads cannot be stopped; their results are no longer needed.
    runtime.shutdown_background();
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            match json {
                true => tell_whole(&e.exit().document(&e.to_string()).to_string()),
                false => tell(&format!("error: {e}")),
            }
            ExitCode::from(e.exit() as u8)
        }
    }
}

/// Prints help, or what is wrong with the command line, as wide as the terminal.
fn shown(help: &clap::Error) -> std::io::Result<()> {
    let mut terminal = match help.use_stderr() {
        true => Term::stderr(),
        false => Term::stdout(),
    };
    if !terminal.is_term() {
        return help.print();
    }
    let text = match console::colors_enabled() {
        true => help.render().ansi().to_string(),
        false => help.render().to_string(),
    };
    terminal.write_all(folded(&text, &terminal).as_bytes())
}
