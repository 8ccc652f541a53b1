//! A proxy that delays every answer of a server, to simulate a slow environment.

use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// Starts a proxy to the server that delays every answer by `wait`; returns its URL. It ends with
/// the runtime.
///
/// # Errors
/// No port is free.
pub async fn slow_way(server: SocketAddr, wait: Duration) -> std::io::Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}", listener.local_addr()?);
    tokio::spawn(async move {
        while let Ok((near, _)) = listener.accept().await {
            tokio::spawn(async move {
                let far = TcpStream::connect(server).await?;
                let (mut asks, mut hears) = near.into_split();
                let (mut answers, mut passes_on) = far.into_split();
                let asked = tokio::io::copy(&mut asks, &mut passes_on);
                let answered = async {
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
                tokio::try_join!(asked, answered).map(|_| ())
            });
        }
    });
    Ok(url)
}
