//! The number of a task, of any size.

use crate::quantity::Quantity;

/// A whole number from a request, of any size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskIndex {
    /// Whether it is below 0.
    pub negative: bool,
    /// Without its sign.
    pub size: Quantity,
}

impl TaskIndex {
    /// Remainder with the sign of the divisor, like Python's `%`.
    pub fn modulo(&self, count: u64) -> u64 {
        match self.size.remainder(count) {
            0 => 0,
            rest if self.negative => count - rest,
            rest => rest,
        }
    }
}

impl TaskIndex {
    /// Remainder and quotient, rounded down, like Python's `divmod`.
    pub fn div_mod(&self, count: u64) -> (u64, Self) {
        let rest = self.modulo(count);
        let mut size = self.size.quotient(count);
        if self.negative && rest != 0 {
            size.add(&Quantity::from(1));
        }
        let negative = self.negative && !size.is_zero();
        (rest, Self { negative, size })
    }

    /// As a session's number.
    pub fn as_u64(&self) -> Option<u64> {
        if self.negative {
            return None;
        }
        self.size.to_string().parse().ok()
    }
}

impl std::fmt::Display for TaskIndex {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}{}", if self.negative { "-" } else { "" }, self.size)
    }
}

impl From<i64> for TaskIndex {
    fn from(number: i64) -> Self {
        Self {
            negative: number < 0,
            size: Quantity::from_digits(&number.unsigned_abs().to_string()),
        }
    }
}
