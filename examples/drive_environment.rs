//! Drives an environment over HTTP, as rollouts do: opens a session on a task, sends texts that a
//! model might write, and prints the replies. Without an address, a built-in server is started.
//!
//! ```sh
//! cargo run --release --workspace --example drive_environment
//! cargo run --release --workspace --example drive_environment -- http://127.0.0.1:36001
//! ```

use agentgym_envs::{ClientOptions, EnvClient, spec};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let server = agentgym_games::start("builtin:worlds?depths=1&lines=4").await?;
    let url = std::env::args().nth(1).unwrap_or(server.url.clone());
    let client = EnvClient::new(spec("textcraft")?, &[url], ClientOptions::default())?;
    let mut session = client.open(0).await?;
    println!("{}\n", session.observation());
    for said in ["Thought: what do I have?\nAction: inventory", "I give up."] {
        let step = session.step(said).await?;
        println!("> {said}");
        println!(
            "{}\n  (action {:?}, reward {}, done {})\n",
            step.observation, step.action, step.reward, step.done
        );
    }
    session.close().await?;
    println!("{:?}", client.counters());
    Ok(())
}
