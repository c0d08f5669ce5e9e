use super::*;
use crate::{
    Choice, Congestion, CrcKernel, Ecn, Hugepages, Lend, MacSource, PortSpec, Progress, Route, RtrChoice,
};
use std::io::Write;
use std::net::IpAddr;
use std::time::Duration;

const DOCUMENTED: &str = include_str!("../../../docs/urnic.toml");

fn parse(text: &str) -> Result<Config, ConfigError> {
    Config::parse(Path::new("urnic.toml"), text)
}

fn env(list: &[(&str, &str)]) -> Vec<(String, String)> {
    list.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect()
}

fn option(option: &str, key: &'static str, value: &str) -> Setting {
    Setting { option: option.to_string(), key, value: value.to_string() }
}

fn file(text: &str) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file
}

#[test]
fn nothing_set_gives_the_defaults() {
    assert_eq!(Config::load(&Sources::default()), Ok(Config::default()));
    assert_eq!(parse(""), Ok(Config::default()));
}

#[test]
fn the_documented_file_equals_the_defaults() {
    assert_eq!(parse(DOCUMENTED).unwrap(), Config::default());
}

/// The documented file contains every key and its variable, contains no other keys, and its examples are valid.
#[test]
fn the_documented_file_is_complete() {
    // A line is an example if a letter follows its #.
    let all: String = DOCUMENTED
        .lines()
        .map(|line| {
            line.strip_prefix('#')
                .filter(|rest| rest.starts_with(|c: char| c.is_alphabetic()))
                .unwrap_or(line)
        })
        .flat_map(|line| [line, "\n"])
        .collect();
    parse(&all).unwrap();
    let document = DeTable::parse(&all).unwrap();
    for key in &KEYS {
        let section = document.get_ref().get(key.section).and_then(|s| s.get_ref().as_table());
        assert!(section.is_some_and(|s| s.contains_key(key.name)), "{} is not documented", key.path());
        assert!(
            DOCUMENTED.split(|c: char| !(c.is_alphanumeric() || c == '_')).any(|word| word == key.env),
            "{} is not documented",
            key.env
        );
    }
    let documented: usize =
        document.get_ref().iter().filter_map(|(_, s)| s.get_ref().as_table()).map(|s| s.len()).sum();
    assert_eq!(documented, KEYS.len());
}

/// Without a number, or with `auto`, there is one engine for each core.
#[test]
fn engines_are_counted_or_follow_the_cores() {
    let count = |text: &str| parse(&format!("[engine]\n{text}")).map(|c| c.engine.count());
    assert_eq!(count(""), Ok(1));
    assert_eq!(count("cores = [4, 5, 6]"), Ok(3));
    assert_eq!(count("cores = [4, 5, 6]\nengines = \"auto\""), Ok(3));
    assert_eq!(count("cores = [4, 5, 6]\nengines = 1"), Ok(1));
    assert_eq!(count("engines = 64"), Ok(64));
    for wrong in ["0", "65", "-1", "\"many\"", "[2]"] {
        let error = count(&format!("engines = {wrong}")).unwrap_err().to_string();
        assert!(error.contains("engine.engines") && error.contains("from 1 to 64, or \"auto\""), "{error}");
    }
    let sources = Sources { env: env(&[("URNIC_ENGINES", "2")]), ..Sources::default() };
    assert_eq!(Config::load(&sources).unwrap().engine.count(), 2);
    let options = vec![option("--engines", "engine.engines", "auto")];
    let sources = Sources { options, ..sources };
    assert_eq!(Config::load(&sources).unwrap().engine.count(), 1, "the option has the last word");
}

/// MPA-2, 29: CRCs are on by default, and the documentation of the key says what protects the data without them.
#[test]
fn the_documentation_says_what_crcs_are_for() {
    assert!(Config::default().mpa.crc);
    let (before, _) = DOCUMENTED.split_once("\ncrc = true\n").unwrap();
    let comment = before.rsplit("\n\n").next().unwrap().replace("\n# ", " ");
    assert!(comment.contains("Internet checksum") && comment.contains("as safe"), "{comment}");
}

/// Each key has a variable and a path of its own, and its section exists.
#[test]
fn keys_are_consistent() {
    for (i, key) in KEYS.iter().enumerate() {
        assert!(SECTIONS.contains(&key.section), "{}", key.path());
        assert!(key.env.starts_with("URNIC_"), "{}", key.env);
        assert!(
            KEYS[..i].iter().all(|other| other.env != key.env && other.path() != key.path()),
            "{}",
            key.path()
        );
    }
}

#[test]
fn every_key_reaches_its_field() {
    let text = r#"
        [port]
        port = "memif:/p/m.sock,role=server"
        mtu = 9000
        mac = "02:00:00:00:00:07"
        fault = "loss=0.01"
        capture = "urnic.pcapng"
        [ip]
        ip = ["10.0.0.7/8"]
        autoconf = true
        vlan = 7
        gateway = "10.1.1.1"
        routes = ["11.0.0.0/8 via 10.0.0.2"]
        [engine]
        cores = [1, 0]
        engines = 3
        progress = "inline"
        crc_kernel = "sse4.2"
        [tcp]
        rto_min = "5ms"
        recv_window = 100_000
        sack = false
        timestamps = false
        window_scale = false
        congestion = "reno"
        ecn = "offer"
        pacing = true
        keepalive_idle = "off"
        keepalive_interval = "2s"
        keepalive_count = 3
        user_timeout = "off"
        queue_delay = "16us"
        [mpa]
        rev = 1
        crc = false
        markers = true
        rtr = "read"
        ird = 0
        ord = 7
        startup_timeout = "2s"
        [memory]
        mb = 512
        hugepages = "off"
        lend = "off"
    "#;
    let document = DeTable::parse(text).unwrap();
    for key in &KEYS {
        let section = document.get_ref().get(key.section).and_then(|s| s.get_ref().as_table());
        assert!(section.is_some_and(|s| s.contains_key(key.name)), "{} is left out", key.path());
    }
    let c = parse(text).unwrap();
    assert_eq!(c.port.spec, Some("memif:/p/m.sock,role=server".parse::<PortSpec>().unwrap()));
    assert_eq!((c.port.mtu, c.port.mac), (9000, MacSource::Fixed(Mac([2, 0, 0, 0, 0, 7]))));
    assert_eq!(c.port.fault.as_deref(), Some("loss=0.01"));
    assert_eq!(c.port.capture.as_deref(), Some(Path::new("urnic.pcapng")));
    assert_eq!(c.ip.addresses, ["10.0.0.7/8".parse().unwrap()]);
    assert_eq!((c.ip.autoconf, c.ip.vlan), (true, Some(7)));
    assert_eq!(c.ip.gateways, [IpAddr::from([10, 1, 1, 1])]);
    assert_eq!(c.ip.routes, ["11.0.0.0/8 via 10.0.0.2".parse().unwrap()]);
    assert_eq!((c.engine.count(), c.engine.cores), (3, vec![1, 0]));
    assert_eq!(c.engine.progress, Progress::Inline);
    assert_eq!(c.engine.crc_kernel, CrcKernel::Sse42);
    assert_eq!((c.tcp.rto_min, c.tcp.recv_window), (Duration::from_millis(5), 100_000));
    assert!(!c.tcp.sack && !c.tcp.timestamps && !c.tcp.window_scale);
    assert_eq!(c.tcp.congestion, Congestion::Reno);
    assert_eq!((c.tcp.ecn, c.tcp.pacing), (Ecn::Offer, true));
    assert_eq!((c.tcp.keepalive_idle, c.tcp.user_timeout), (None, None));
    assert_eq!((c.tcp.keepalive_interval, c.tcp.keepalive_count), (Duration::from_secs(2), 3));
    assert_eq!(c.tcp.queue_delay, Some(Duration::from_micros(16)));
    assert_eq!((c.mpa.rev, c.mpa.crc, c.mpa.ird, c.mpa.ord), (1, false, 0, 7));
    assert_eq!((c.mpa.markers, c.mpa.rtr), (true, RtrChoice::Read));
    assert_eq!(c.mpa.startup_timeout, Duration::from_secs(2));
    assert_eq!((c.memory.mb, c.memory.hugepages, c.memory.lend), (Some(512), Hugepages::Off, Lend::Off));
}

/// The file overrides the defaults, the environment overrides the file, and options override the environment.
#[test]
fn later_layers_win() {
    let file = file("[port]\nmtu = 1000\n[mpa]\nird = 1\nord = 1\n[tcp]\nsack = false\n");
    let mut sources = Sources {
        file: Some(file.path().to_path_buf()),
        env: env(&[
            ("URNIC_MPA_IRD", "2"),
            ("URNIC_MPA_ORD", "2"),
            ("HOME", "x"),
            ("URNIC_TCP_RTO_MIN", "9ms"),
        ]),
        options: vec![option("--ord", "mpa.ord", "3")],
    };
    let c = Config::load(&sources).unwrap();
    assert_eq!((c.port.mtu, c.tcp.sack), (1000, false));
    assert_eq!(c.tcp.rto_min, Duration::from_millis(9));
    assert_eq!((c.mpa.ird, c.mpa.ord), (2, 3));
    assert_eq!(c.mpa.rev, 2);

    // `URNIC_CONFIG` names the file, unless the caller names one.
    let other = tempfile::NamedTempFile::new().unwrap();
    sources.env.extend(env(&[("URNIC_CONFIG", other.path().to_str().unwrap())]));
    assert_eq!(Config::load(&sources).unwrap().port.mtu, 1000);
    sources.file = None;
    assert_eq!(Config::load(&sources).unwrap().port.mtu, 1500);
    sources.env.retain(|(name, _)| name != "URNIC_CONFIG");
    sources.env.extend(env(&[("URNIC_CONFIG", file.path().to_str().unwrap())]));
    assert_eq!(Config::load(&sources).unwrap().port.mtu, 1000);
}

/// Every mistake in a route is reported with the reason.
#[test]
fn static_routes() {
    let parse = |text: &str| Config::parse(Path::new("urnic.toml"), text);
    let ip = "[ip]\nip = \"10.0.0.1/24\"\n";
    let routes = ["10.1.0.0/16 via 10.0.0.2", "0.0.0.0/0 via 10.0.0.3", "10.1.7.1/32 via 10.0.0.4"];
    let c = parse(&format!("{ip}routes = {routes:?}")).unwrap();
    assert_eq!(c.ip.routes.iter().map(Route::to_string).collect::<Vec<_>>(), routes);
    let env = vec![("URNIC_ROUTES".to_string(), routes.join(","))];
    assert_eq!(Config::load(&Sources { env, ..Sources::default() }).unwrap().ip.routes, c.ip.routes);
    for (bad, why) in [
        ("10.1.0.0/16", "is not a route"),
        ("10.1.0.0 via 10.0.0.2", "is not a route"),
        ("10.1.0.0/33 via 10.0.0.2", "is not a route"),
        ("10.1.0.1/16 via 10.0.0.2", "has host bits set behind its prefix"),
        ("10.1.0.0/16 via x", "is not a route"),
        ("10.1.0.0/16 via 10.0.1.2", "10.0.1.2 is not in the network of 10.0.0.1/24"),
        ("10.1.0.0/16 via 10.0.0.1", "10.0.0.1 is the device's own address"),
    ] {
        let error = parse(&format!("{ip}routes = [{bad:?}]")).unwrap_err().to_string();
        assert!(error.contains("urnic.toml:3: ip.routes") && error.contains(why), "{error}");
    }
}

#[test]
fn the_address_of_the_interface() {
    let parse = |text: &str| Config::parse(Path::new("urnic.toml"), text);
    let c =
        parse("[port]\nport = \"af_packet:eth0\"\nmac = \"interface\"\n[ip]\nip = \"10.0.0.1/24\"").unwrap();
    assert_eq!((c.port.mac, c.mac()), (MacSource::Interface, None));
    for port in ["ring:x", "tap:t0", "vhost:/p"] {
        let error =
            parse(&format!("[port]\nport = \"{port}\"\nmac = \"interface\"")).unwrap_err().to_string();
        assert!(
            error.contains("urnic.toml:3: port.mac") && error.contains("no Ethernet address of its own"),
            "{error}"
        );
    }
}

#[test]
fn mistakes_in_files() {
    for (text, message) in [
        ("[port]\n\nmtuu = 1500\n", "urnic.toml:3: port.mtuu: there is no such key; did you mean mtu?"),
        (
            "[port]\nmtu = \"1500\"\n",
            "urnic.toml:2: port.mtu: the string \"1500\" is not a whole number; write the largest IP packet in bytes, \
             a number from 576 to 9000",
        ),
        (
            "[port]\nmtu = 575",
            "urnic.toml:2: port.mtu: 575 is outside 576 to 9000; write the largest IP packet in bytes, a number from \
             576 to 9000",
        ),
        (
            "# x\n[port]\nport = \"pcie:0000:00:04.0\"\n",
            "urnic.toml:3: port.port: there is no kind of port \"pcie\"; write kernel, kernel:ADDRESS or kernel:INTERFACE \
             for the host's own addresses, or KIND:ARG[,key=value...], where the kinds are virtio_user:PATH, vhost:PATH, memif:PATH, ring:NAME, af_packet:INTERFACE, af_xdp:INTERFACE, tap:NAME, \
             pci:ADDRESS and vdev:DEVICE",
        ),
        (
            "[engine]\nprogress = \"fast\"",
            "urnic.toml:2: engine.progress: the string \"fast\" is not one of inline, dedicated, adaptive; write \
             \"inline\", \"dedicated\" or \"adaptive\"",
        ),
        (
            "[tcp]\nrto_min = 200",
            "urnic.toml:2: tcp.rto_min: the number 200 is not a time with a unit; write a time from 1ms to 60s, such \
             as \"200ms\"",
        ),
        (
            "[tcp]\nrto_min = 0.2",
            "urnic.toml:2: tcp.rto_min: a number with a fraction is not a time with a unit; write a time from 1ms to \
             60s, such as \"200ms\"",
        ),
        (
            "[banana]\nsack = true",
            "urnic.toml:1: there is no section [banana]; the sections are port, ip, engine, tcp, mpa, memory",
        ),
        ("[tpc]\nsack = true", "urnic.toml:1: there is no section [tpc]; did you mean tcp?"),
        ("[engin]\n", "urnic.toml:1: there is no section [engin]; did you mean engine?"),
        ("[tcp]\nmtu = 1500", "urnic.toml:2: tcp.mtu: there is no such key; it belongs under [port]"),
        ("mtu = 1500\n", "urnic.toml:1: mtu: the key is in no section; put it under [port]"),
        (
            "[mpa]\nbanana = 1",
            "urnic.toml:2: mpa.banana: there is no such key; the keys of [mpa] are rev, crc, markers, rtr, ird, ord, startup_timeout",
        ),
        (
            "\n[port\nmtu = 1500",
            "urnic.toml:2: not valid TOML: unclosed table, expected `]`; correct the line; strings need quotes, \
             sections look like [port]",
        ),
        (
            "[port]\nmtu = 1500\nmtu = 1500\n",
            "urnic.toml:3: not valid TOML: duplicate key; correct the line; strings need quotes, sections look like \
             [port]",
        ),
        (
            "[ip]\nip = \"10.0.0.1/24\"\ngateway = \"10.0.1.1\"\n",
            "urnic.toml:3: ip.gateway: 10.0.1.1 is not in the network of 10.0.0.1/24; write the address of a router in \
             the network of ip.ip, or leave it out; or correct the prefix length of ip.ip",
        ),
        (
            "[ip]\nip = \"10.0.0.1/24\"\ngateway = \"10.0.0.1\"\n",
            "urnic.toml:3: ip.gateway: 10.0.0.1 is the device's own address; write the address of a router in the network of \
             ip.ip, or leave it out; or correct the prefix length of ip.ip",
        ),
    ] {
        assert_eq!(parse(text).unwrap_err().to_string(), message, "{text:?}");
    }
}

#[test]
fn mistakes_elsewhere() {
    let load = |env_list: &[(&str, &str)], options: Vec<Setting>| {
        Config::load(&Sources { file: None, env: env(env_list), options }).unwrap_err().to_string()
    };
    assert_eq!(
        load(&[("URNIC_MPA_CRC", "maybe")], vec![]),
        "environment variable URNIC_MPA_CRC: mpa.crc: \"maybe\" is not true or false; write true or false"
    );
    assert_eq!(
        load(&[("URNIC_MTUU", "1500")], vec![]),
        "environment variable URNIC_MTUU: there is no such setting; did you mean URNIC_MTU?"
    );
    assert_eq!(
        load(&[], vec![option("--mtu", "port.mtu", "big")]),
        "option --mtu: port.mtu: \"big\" is not a whole number; write the largest IP packet in bytes, a number from \
         576 to 9000"
    );
    // A variable of the same prefix that resembles no setting belongs to another program.
    let sources =
        Sources { env: env(&[("URNIC_MY_OWN_THING", "1"), ("URNIC_LOG", "debug")]), ..Sources::default() };
    assert_eq!(Config::load(&sources), Ok(Config::default()));
}

#[test]
fn files_that_cannot_be_read() {
    let load = |path: &Path| {
        Config::load(&Sources { file: Some(path.to_path_buf()), ..Sources::default() })
            .unwrap_err()
            .to_string()
    };
    assert!(load(Path::new("/nonexistent/urnic.toml")).starts_with(
        "/nonexistent/urnic.toml: cannot be read: No such file or directory (os error 2); name a readable file"
    ));
    assert!(load(Path::new("/")).contains("/: is not a regular file;"));
    let binary = tempfile::NamedTempFile::new().unwrap();
    fs::write(binary.path(), b"[port]\nfault = \"\xff\"\n").unwrap();
    assert!(load(binary.path()).ends_with("is not UTF-8 text; save it as UTF-8"));
    let large = file(&"# long\n".repeat(200_000));
    assert!(load(large.path()).ends_with("has 1400000 bytes; a configuration has at most 1 MiB"));
}

#[test]
fn derived_values() {
    let mut c = Config::default();
    assert_eq!((c.memory_mb(), c.mac()), (128, None));
    c.port.mtu = 9000;
    assert_eq!(c.memory_mb(), 256);
    c.engine.engines = Some(3);
    assert_eq!(c.memory_mb(), 512);
    c.memory.mb = Some(64);
    assert_eq!(c.memory_mb(), 64);
    c.ip.addresses = vec!["10.0.0.1/24".parse().unwrap()];
    assert_eq!(c.mac(), Some(Mac::for_address(IpAddr::from([10, 0, 0, 1]))));
    c.port.mac = MacSource::Fixed(Mac([2; 6]));
    assert_eq!(c.mac(), Some(Mac([2; 6])));
}

#[test]
fn words_stand_for_one_value_each() {
    fn check<T: Choice + std::fmt::Debug>() {
        for (value, word) in T::WORDS {
            assert_eq!((T::from_word(word), value.word()), (Some(*value), *word));
        }
        assert_eq!(T::from_word(""), None);
    }
    check::<Progress>();
    check::<CrcKernel>();
    check::<Congestion>();
    check::<Ecn>();
    check::<Hugepages>();
}

proptest::proptest! {
    /// Any text results in a configuration or an error message, never in a panic.
    #[test]
    fn any_text_is_handled(text in "(\\[(port|ip|tcp|engine)\\]\n|(mtu|ip|cores|rto_min|port) = |\"[^\"]{0,20}\"\n|[0-9]{1,25}\n|\\PC{0,5}){0,12}") {
        if let Err(error) = parse(&text) {
            let message = error.to_string();
            proptest::prop_assert!(message.starts_with("urnic.toml"), "{}", message);
        }
    }
}
