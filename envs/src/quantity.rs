//! Counts without an upper bound.
//!
//! The original counts with Python integers: `get` accepts any number, and the inventory adds them
//! up. A list of digits is enough here: counts are only added, subtracted, compared and divided by
//! small numbers, and nearly all have one or two digits.

use std::cmp::Ordering;

/// Python does not convert texts with more digits than this to integers, or back.
pub const DIGITS_MAX: usize = 4300;

/// A whole number ≥ 0: decimal digits, least significant first, no zeros at the high end.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Quantity(Vec<u8>);

impl Quantity {
    /// Reads ASCII digits; the caller has checked that there are no other characters.
    pub fn from_digits(digits: &str) -> Self {
        let mut number = Self(digits.bytes().rev().map(|b| b - b'0').collect());
        number.trim();
        number
    }

    /// How many digits it has.
    pub fn digits(&self) -> usize {
        self.0.len().max(1)
    }

    /// Adds another.
    pub fn add(&mut self, other: &Self) {
        let mut carry = 0;
        for place in 0..self.0.len().max(other.0.len()) {
            if place == self.0.len() {
                self.0.push(0);
            }
            let sum = self.0[place] + other.0.get(place).copied().unwrap_or(0) + carry;
            self.0[place] = sum % 10;
            carry = sum / 10;
        }
        if carry > 0 {
            self.0.push(carry);
        }
    }

    /// Subtracts a number that is known not to be larger.
    pub fn subtract(&mut self, other: &Self) {
        assert!(*self >= *other, "more was taken than is held");
        let mut borrow = 0;
        for (place, digit) in self.0.iter_mut().enumerate() {
            let take = other.0.get(place).copied().unwrap_or(0) + borrow;
            borrow = u8::from(*digit < take);
            *digit = *digit + 10 * borrow - take;
        }
        self.trim();
    }

    /// Whether it is 0.
    pub fn is_zero(&self) -> bool {
        self.0.is_empty()
    }

    /// Remainder of the division by a small number.
    pub fn remainder(&self, divisor: u64) -> u64 {
        let rest = self.0.iter().rev().fold(0u128, |rest, digit| {
            (rest * 10 + u128::from(*digit)) % u128::from(divisor)
        });
        rest as u64
    }

    /// The whole part of the division by a small number.
    pub fn quotient(&self, divisor: u64) -> Self {
        let mut rest = 0u128;
        let mut digits = self.0.clone();
        for digit in digits.iter_mut().rev() {
            rest = rest * 10 + u128::from(*digit);
            // Below ten, since the remainder is below the divisor.
            *digit = (rest / u128::from(divisor)) as u8;
            rest %= u128::from(divisor);
        }
        let mut number = Self(digits);
        number.trim();
        number
    }

    fn trim(&mut self) {
        while self.0.last() == Some(&0) {
            self.0.pop();
        }
    }
}

impl From<u32> for Quantity {
    fn from(number: u32) -> Self {
        Self::from_digits(&number.to_string())
    }
}

impl Ord for Quantity {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0
            .len()
            .cmp(&other.0.len())
            .then_with(|| self.0.iter().rev().cmp(other.0.iter().rev()))
    }
}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl std::fmt::Display for Quantity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.0.is_empty() {
            return f.write_str("0");
        }
        let text: String = self.0.iter().rev().map(|d| char::from(b'0' + d)).collect();
        f.write_str(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn arithmetic_is_that_of_whole_numbers(a in 0u64..u64::MAX / 2, b in 0u64..u64::MAX / 2, n in 1u64..10_000) {
            let (large, small) = (a.max(b), a.min(b));
            let mut number = Quantity::from_digits(&format!("000{large}"));
            let other = Quantity::from_digits(&small.to_string());
            prop_assert_eq!(number.cmp(&other), large.cmp(&small));
            number.add(&other);
            prop_assert_eq!(number.to_string(), (large + small).to_string());
            number.subtract(&other);
            prop_assert_eq!(number.to_string(), large.to_string());
            prop_assert_eq!(number.remainder(n), large % n);
            prop_assert_eq!(number.quotient(n).to_string(), (large / n).to_string());
        }
    }
}
