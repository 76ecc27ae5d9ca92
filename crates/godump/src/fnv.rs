//! FNV-1a of all that is written.

use std::fmt;

macro_rules! hasher {
    ($name:ident, $int:ty, $offset:expr, $prime:expr, $bits:literal) => {
        #[doc = concat!($bits, "-bit FNV-1a of all that is written.")]
        #[derive(Clone, Debug)]
        pub struct $name($int);

        impl Default for $name {
            fn default() -> Self {
                Self($offset)
            }
        }

        impl $name {
            /// Take in these bytes.
            pub fn update(&mut self, bytes: &[u8]) {
                let step =
                    |hash: $int, byte: &u8| (hash ^ <$int>::from(*byte)).wrapping_mul($prime);
                self.0 = bytes.iter().fold(self.0, step);
            }

            /// The hash so far.
            pub fn finish(&self) -> $int {
                self.0
            }
        }

        impl fmt::Write for $name {
            fn write_str(&mut self, text: &str) -> fmt::Result {
                self.update(text.as_bytes());
                Ok(())
            }
        }
    };
}

hasher!(Fnv32a, u32, 0x811c_9dc5, 0x0100_0193, "32");
hasher!(
    Fnv128a,
    u128,
    0x6c62_272e_07bb_0142_62b8_2175_6295_c58d,
    0x0000_0000_0100_0000_0000_0000_0000_013b,
    "128"
);
