//! A line of a stated bandwidth and latency to a server, as a machine elsewhere has it.

use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
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
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener
        .local_addr()
        .expect("a bound socket has an address");
    let directions: &'static [Free; 2] = Box::leak(Box::default());
    tokio::spawn(async move {
        while let Ok((near, _)) = listener.accept().await {
            let server = server.clone();
            tokio::spawn(async move {
                let far = TcpStream::connect(server).await?;
                let ((asks, hears), (answers, takes)) = (near.into_split(), far.into_split());
                let [up, down] = directions;
                tokio::try_join!(
                    carry(asks, takes, line, up),
                    carry(answers, hears, line, down)
                )
            });
        }
    });
    address
}

/// Passes bytes on when the line would have brought them.
async fn carry(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    line: Line,
    free: &'static Free,
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
