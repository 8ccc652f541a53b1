//! A real Redis for tests: `redis-server` on a free port, in memory, stopped when dropped. Tests
//! that need it fail if it is missing, since a skipped test proves nothing.

use crate::ports::free_port;
use std::{
    io::{self, BufRead, BufReader, Read, Write},
    net::TcpStream,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// A server used by one test only.
#[derive(Debug)]
pub struct RedisServer {
    port: u16,
    child: Child,
}

impl RedisServer {
    /// Starts a server and waits until it answers.
    ///
    /// # Panics
    /// If `redis-server` is missing or does not start.
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// [`RedisServer::start`] with further arguments.
    ///
    /// # Panics
    /// See [`RedisServer::start`].
    pub fn start_with(arguments: &[&str]) -> Self {
        // Another process may take the port between the check and the start.
        for _ in 0..5 {
            let port = free_port();
            let mut server = Self {
                port,
                child: spawn(port, arguments),
            };
            if server.answers() {
                return server;
            }
        }
        panic!("redis-server does not start; run `redis-server --port 0` to see why");
    }

    /// `redis://127.0.0.1:PORT`.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// `127.0.0.1:PORT`.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Kills the server like a power failure and starts an empty one on the same port.
    ///
    /// # Panics
    /// If it does not start again.
    pub fn restart(&mut self) {
        self.end();
        self.child = spawn(self.port, &[]);
        assert!(self.answers(), "redis-server does not start again");
    }

    /// Sends one command and returns the first line of the answer, such as
    /// `+OK` or `:3`.
    ///
    /// # Errors
    /// If the server is down.
    pub fn command(&self, words: &[&[u8]]) -> io::Result<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        let mut request = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            request.extend(format!("${}\r\n", word.len()).into_bytes());
            request.extend(*word);
            request.extend(b"\r\n");
        }
        stream.write_all(&request)?;
        let mut line = String::new();
        BufReader::new(stream.take(1 << 16)).read_line(&mut line)?;
        Ok(line.trim_end().to_owned())
    }

    /// Memory used by its data and its bookkeeping.
    ///
    /// # Errors
    /// If the server is down or gives no number.
    pub fn memory_bytes(&self) -> io::Result<u64> {
        const ASK: &[u8] =
            b"return tonumber(string.match(redis.call('info', 'memory'), 'used_memory:(%d+)'))";
        let answer = self.command(&[b"EVAL", ASK, b"0"])?;
        let number = answer.trim_start_matches(':').parse();
        number.map_err(|_| io::Error::other(answer))
    }

    fn answers(&mut self) -> bool {
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(10) {
            if self
                .command(&[b"PING"])
                .is_ok_and(|answer| answer == "+PONG")
            {
                return true;
            }
            if self.child.try_wait().is_ok_and(|ended| ended.is_some()) {
                return false;
            }
            thread::sleep(Duration::from_millis(20));
        }
        false
    }

    fn end(&mut self) {
        // Fails only if the server has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.end();
    }
}

fn spawn(port: u16, arguments: &[&str]) -> Child {
    let port = port.to_string();
    Command::new("redis-server")
        .args(["--port", &port, "--bind", "127.0.0.1"])
        .args(["--save", "", "--appendonly", "no"])
        .args(arguments)
        .stdout(Stdio::null())
        .spawn()
        .expect("redis-server is installed (`.ci/run` does it)")
}
