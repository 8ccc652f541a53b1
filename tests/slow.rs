//! A proxy that delays every answer of a server, to simulate a slow environment.

use crate::tunnel::{pass_on, tunnel};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

/// Starts a proxy to the server that delays every answer by `wait`; returns its URL. It ends with
/// the runtime.
///
/// # Errors
/// No port is free.
pub async fn slow_way(server: SocketAddr, wait: Duration) -> std::io::Result<String> {
    let answers = move |mut answers: OwnedReadHalf, mut hears: OwnedWriteHalf| async move {
        let mut piece = vec![0; 1 << 16];
        loop {
            let length = answers.read(&mut piece).await?;
            if length == 0 {
                return hears.shutdown().await;
            }
            tokio::time::sleep(wait).await;
            hears.write_all(&piece[..length]).await?;
        }
    };
    let address = tunnel(server.to_string(), pass_on, answers).await?;
    Ok(format!("http://{address}"))
}
