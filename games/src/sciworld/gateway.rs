//! The text protocol of a Py4J gateway: how a program calls methods of Java objects over a socket.
//!
//! A command is a letter, its parts, and `e`, each on a line of its own; an argument begins with the
//! letter of its type. An answer is one line: `!y` or `!x` (an exception), the letter of a type, the
//! value. Line breaks and backslashes inside a text are escaped.

use std::io::{BufRead, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::time::Duration;

/// No answer of the simulator comes near: a whole object tree is some 160 KB.
const ANSWER_MAX_BYTES: u64 = 64 << 20;
/// A step takes milliseconds, the first load seconds.
const ANSWER_MAX: Duration = Duration::from_secs(120);

/// An argument of a call.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Argument<'a> {
    Text(&'a str),
    Whole(i64),
    Flag(bool),
    /// An object of the gateway, by its name there.
    Object(&'a str),
}

/// An answer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Reply {
    Text(String),
    Whole(i64),
    Real(f64),
    Flag(bool),
    /// An object, a list or an array, by its name in the gateway.
    Object(String),
    Nothing,
    /// The exception's text with its trace.
    Failed(String),
    /// The exception as an object, whose text has to be asked for.
    Thrown(String),
}

impl Reply {
    /// Reads an answer's line. `Err` says what is wrong with it.
    pub(crate) fn read(line: &str) -> Result<Self, String> {
        let bad = || {
            let shown: String = line.chars().take(80).collect();
            format!("answered {shown:?}, which is no answer of a Py4J gateway")
        };
        let line = line.strip_suffix('\n').ok_or_else(bad)?;
        let (failed, rest) = match line.split_at_checked(2) {
            Some(("!y", rest)) => (false, rest),
            Some(("!x", rest)) => (true, rest),
            _ => return Err(bad()),
        };
        let Some(kind) = rest.chars().next() else {
            // An exception without any text.
            return match failed {
                true => Ok(Self::Failed(String::new())),
                false => Err(bad()),
            };
        };
        let value = &rest[kind.len_utf8()..];
        Ok(match (failed, kind) {
            (false, 's') => Self::Text(unescaped(value)),
            (false, 'i' | 'L') => Self::Whole(value.parse().map_err(|_| bad())?),
            (false, 'd') => Self::Real(value.parse().map_err(|_| bad())?),
            (false, 'b') => Self::Flag(value.parse().map_err(|_| bad())?),
            (false, 'r' | 'l' | 't') => Self::Object(value.to_owned()),
            (false, 'v' | 'n') => Self::Nothing,
            (true, 's') => Self::Failed(unescaped(value)),
            (true, 'r') => Self::Thrown(value.to_owned()),
            _ => return Err(bad()),
        })
    }
}

fn unescaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        match (letter, letter == '\\') {
            (_, true) => match letters.next() {
                Some('n') => out.push('\n'),
                Some('r') => out.push('\r'),
                Some(other) => out.push(other),
                None => out.push('\\'),
            },
            (letter, false) => out.push(letter),
        }
    }
    out
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\")
        .replace('\r', "\\r")
        .replace('\n', "\\n")
}

/// A connection to a gateway. One call at a time.
#[derive(Debug)]
pub(crate) struct Gateway {
    stream: BufReader<TcpStream>,
}

impl Gateway {
    /// Connects to a gateway on this machine.
    pub(crate) fn connect(port: u16) -> std::io::Result<Self> {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(ANSWER_MAX))?;
        stream.set_write_timeout(Some(ANSWER_MAX))?;
        Ok(Self {
            stream: BufReader::new(stream),
        })
    }

    /// A new object of a class.
    pub(crate) fn construct(&mut self, class: &str) -> Result<Reply, String> {
        self.ask(&format!("i\n{class}\ne\n"))
    }

    /// Calls a method of an object, or of a class that is named `z:` and its name.
    pub(crate) fn call(
        &mut self,
        object: &str,
        method: &str,
        arguments: &[Argument<'_>],
    ) -> Result<Reply, String> {
        let mut command = format!("c\n{object}\n{method}\n");
        for argument in arguments {
            command += &match argument {
                Argument::Text(text) => format!("s{}\n", escaped(text)),
                Argument::Whole(number) => format!("i{number}\n"),
                Argument::Flag(flag) => format!("b{flag}\n"),
                Argument::Object(name) => format!("r{name}\n"),
            };
        }
        command += "e\n";
        match self.ask(&command)? {
            // The text of an exception has a command of its own.
            Reply::Thrown(exception) => {
                let told = self.ask(&format!("p\nr{exception}\ne\n"))?;
                self.forget(&exception)?;
                Ok(match told {
                    Reply::Text(text) => Reply::Failed(text),
                    other => Reply::Failed(format!("{other:?}")),
                })
            }
            reply => Ok(reply),
        }
    }

    /// Lets the gateway free an object.
    pub(crate) fn forget(&mut self, object: &str) -> Result<(), String> {
        self.ask(&format!("m\nd\n{object}\ne\n")).map(drop)
    }

    fn ask(&mut self, command: &str) -> Result<Reply, String> {
        let sent = self.stream.get_mut().write_all(command.as_bytes());
        sent.map_err(|error| format!("took no command: {error}"))?;
        let mut line = Vec::new();
        let read = (&mut self.stream)
            .take(ANSWER_MAX_BYTES)
            .read_until(b'\n', &mut line);
        read.map_err(|error| format!("gave no answer: {error}"))?;
        if line.is_empty() {
            return Err("has ended".to_owned());
        }
        let line = String::from_utf8(line).map_err(|_| "answered no UTF-8".to_owned())?;
        Reply::read(&line)
    }
}
