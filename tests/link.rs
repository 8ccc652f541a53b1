//! A line of a stated bandwidth and latency to a server, as a machine elsewhere has it.

use crate::tunnel::tunnel;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{Mutex, mpsc};
use tokio::time::Instant;

/// What a line can do, in each direction.
#[derive(Debug, Clone, Copy)]
pub struct Line {
    /// Of all its connections together.
    pub bytes_per_s: f64,
    /// A request takes it twice.
    pub one_way: Duration,
}

/// When the line has carried what it was given so far.
type Free = Mutex<Option<Instant>>;

/// Starts a line to a server; it ends with the runtime.
///
/// # Panics
/// If no port is free.
pub async fn line_to(server: String, line: Line) -> SocketAddr {
    let [up, down] = [(); 2].map(|()| Arc::new(Free::default()));
    let address = tunnel(
        server,
        move |from, to| carry(from, to, line, Arc::clone(&up)),
        move |from, to| carry(from, to, line, Arc::clone(&down)),
    );
    address.await.expect("a free port")
}

/// Passes bytes on when the line would have brought them.
async fn carry(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    line: Line,
    free: Arc<Free>,
) -> std::io::Result<()> {
    // Room for what is under way at a gigabit for a tenth of a second.
    const UNDER_WAY: usize = 256;
    let (sent, mut due) = mpsc::channel::<(Instant, Vec<u8>)>(UNDER_WAY);
    let deliver = async {
        while let Some((at, piece)) = due.recv().await {
            tokio::time::sleep_until(at).await;
            to.write_all(&piece).await?;
        }
        to.shutdown().await
    };
    let take = async {
        let mut piece = vec![0; 1 << 16];
        loop {
            let length = from.read(&mut piece).await?;
            if length == 0 {
                break;
            }
            let carried = {
                let mut free = free.lock().await;
                let begins = free.unwrap_or_else(Instant::now).max(Instant::now());
                let ends = begins + Duration::from_secs_f64(length as f64 / line.bytes_per_s);
                *free = Some(ends);
                ends
            };
            if sent
                .send((carried + line.one_way, piece[..length].to_vec()))
                .await
                .is_err()
            {
                break;
            }
        }
        drop(sent);
        Ok(())
    };
    tokio::try_join!(deliver, take).map(|_| ())
}
