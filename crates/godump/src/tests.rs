use std::fmt::Write;

use serde_json::json;

use super::*;

/// What upstream makes of these texts: as it keeps them, and as it keeps them for a resource.
#[test]
fn quantities_print_as_upstream() {
    for line in include_str!("testdata/quantities.txt").lines() {
        let fields: Vec<&str> = line.split('\t').collect();
        let quantity = Quantity::parse(fields[0]);
        match (&fields[1..], quantity) {
            (["-"], quantity) => assert_eq!(quantity, None, "{}", fields[0]),
            ([plain, rounded], Some(quantity)) => {
                assert_eq!(quantity.to_string(), *plain, "{}", fields[0]);
                assert_eq!(quantity.rounded().to_string(), *rounded, "{}", fields[0]);
            }
            (_, quantity) => panic!("{line}: {quantity:?}"),
        }
    }
}

#[test]
fn json_is_written_as_go_writes_it() {
    let types = Types::parse(
        "t.T\n  Name string name !\n  Text string\n  Size int64\n  U t.U u !\n  P *t.U\n  \
         L []string l !\n  M map[string]string\n  E t.E .\nt.U\n  On bool\nt.E\n  Flag *bool\n",
    );
    let text = |value: Value| {
        let mut text = String::new();
        write_json(&as_go(&types, "t.T", &value), &mut text).unwrap();
        text
    };
    assert_eq!(text(json!({})), r#"{"l":null,"name":"","u":{}}"#);
    assert_eq!(
        text(json!({"text": "", "size": 0, "p": {}, "l": [], "m": {}, "flag": false})),
        r#"{"flag":false,"l":null,"name":"","p":{},"u":{}}"#
    );
    assert_eq!(
        text(json!({"name": "<&\u{2028}\u{1}\u{7f}\"\\", "size": 9_223_372_036_854_775_807_i64})),
        "{\"l\":null,\"name\":\"\\u003c\\u0026\\u2028\\u0001\u{7f}\\\"\\\\\",\
         \"size\":9223372036854775807,\"u\":{}}"
            .replace("9223372036854775807", "9223372036854776000")
    );
}

#[test]
fn fnv_is_that_of_the_specification() {
    let (mut one, mut a) = (Fnv32::default(), Fnv32a::default());
    one.update(b"foobar");
    a.update(b"foobar");
    assert_eq!((one.finish(), a.finish()), (0x31f0_b262, 0xbf9c_f968));
}

/// As upstream's `dump.ForHash` prints such a value.
#[test]
fn maps_are_sorted_by_printed_key() {
    let types = Types::parse(
        "t.T\n  Small map[string]int small\n  Numbers map[int]*t.U\nt.U\n  Size uint64\n",
    );
    let value = json!({
        "small": {"b": 1, "B": -2},
        "numbers": {"10": {"size": u64::MAX}, "9": null},
    });
    let mut text = String::new();
    print(&types, "*t.T", &value, &mut text).ok();
    assert_eq!(
        text,
        "(*t.T){Small:(map[string]int)map[B:-2 b:1] \
         Numbers:(map[int]*t.U)map[9:<nil> 10:<*>{Size:(uint64)18446744073709551615}]}"
    );
}

#[test]
fn hashes_are_fnv() {
    let (mut small, mut large) = (Fnv32a::default(), Fnv128a::default());
    for hasher in [&mut small as &mut dyn Write, &mut large] {
        hasher.write_str("foobar").ok();
    }
    assert_eq!(small.finish(), 0xbf9c_f968);
    assert_eq!(large.finish(), 0x343e_1662_793c_64bf_6f0d_3597_ba44_6f18);
}
