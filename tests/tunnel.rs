//! A TCP proxy whose two directions are functions of the caller.

use std::future::Future;
use std::io::Result;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};

/// A direction in which every byte is passed on as it comes.
///
/// # Errors
/// A connection is cut.
pub async fn pass_on(mut from: OwnedReadHalf, mut to: OwnedWriteHalf) -> Result<()> {
    tokio::io::copy(&mut from, &mut to).await.map(drop)
}

/// Starts a proxy to a server: `asks` carries what clients send, `answers` what the server does. It ends with
/// the runtime.
///
/// # Errors
/// No port is free.
pub async fn tunnel<
    A: Future<Output = Result<()>> + Send,
    B: Future<Output = Result<()>> + Send,
>(
    server: String,
    asks: impl Fn(OwnedReadHalf, OwnedWriteHalf) -> A + Send + Sync + 'static,
    answers: impl Fn(OwnedReadHalf, OwnedWriteHalf) -> B + Send + Sync + 'static,
) -> Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let directions = Arc::new((asks, answers));
    tokio::spawn(async move {
        while let Ok((near, _)) = listener.accept().await {
            let (server, directions) = (server.clone(), Arc::clone(&directions));
            tokio::spawn(async move {
                let far = TcpStream::connect(server).await?;
                let ((asked, hears), (answered, takes)) = (near.into_split(), far.into_split());
                let (asks, answers) = (&directions.0, &directions.1);
                tokio::try_join!(asks(asked, takes), answers(answered, hears)).map(|_| ())
            });
        }
    });
    Ok(address)
}
