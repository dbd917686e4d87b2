//! What an environment is called: two words that people can say, or whatever its maker chose.

use crate::error::{EnvError, Result};

const CHARS_MAX: usize = 63;

const MANNERS: &str = "able agile airy amber apt bold brave breezy bright brisk calm candid cheery civil clear clever cosy crisp \
    daring deft eager early easy fair fancy fast fine firm fleet fond frank free fresh gentle glad golden grand great handy happy hardy \
    hasty honest humble jolly just keen kind large lean light lively loyal lucid lucky merry mighty mild modest neat nimble noble open \
    patient plain polite proud prompt quick quiet rapid ready regal rosy sage sane serene sharp shiny silent silver simple sincere smart \
    smooth snug sober solid sound steady still strong subtle sunny sure sweet swift tender tidy true trusty upbeat valid vast vivid warm \
    wise witty worthy young zesty";
const ANIMALS: &str = "adder albatross alpaca ant antelope auk badger bat bear beaver bee beetle bison boar bobcat buck bull camel carp \
    cat chough civet cobra cod colt condor coot coral coyote crab crane cricket crow cub deer dingo dodo doe dog dolphin donkey dove duck \
    eagle eel egret elk emu falcon fawn ferret finch fish flea fly foal fox frog gannet gazelle gecko gibbon giraffe gnat gnu goat goose \
    gopher grouse gull hare hawk hen heron hippo horse hound hyena ibex ibis iguana impala jackal jaguar jay kestrel kid kite kitten kiwi \
    koala lamb lark lemming lemur lion lizard llama lobster lynx macaw magpie mallard mammoth marlin marmot marten mink mole moose moth \
    mouse mule newt ocelot octopus orca osprey otter owl ox panda panther parrot penguin perch pigeon pika pike plover pony puffin puma \
    quail rabbit raccoon ram raven robin rook sable salmon seal shark sheep shrew shrimp skunk sloth snail snake sparrow spider squid \
    stag stork swan swift tapir tern thrush tiger toad trout tuna turkey turtle viper vole walrus wasp weasel whale wolf wombat wren yak zebra";

/// Two words at random.
pub fn generate() -> String {
    let mut random = [0; 8];
    // Without randomness the first words are as good as any: whoever asks looks whether they are taken.
    let _ = getrandom::fill(&mut random);
    let [a, b, c, d, ..] = random;
    let pick = |words: &'static str, number: u16| {
        let count = words.split_whitespace().count();
        words.split_whitespace().nth(usize::from(number) % count).unwrap_or("plain")
    };
    format!("{}-{}", pick(MANNERS, u16::from_le_bytes([a, b])), pick(ANIMALS, u16::from_le_bytes([c, d])))
}

/// An id becomes part of paths, references and names of containers.
pub fn check(id: &str) -> Result<()> {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let ends_well = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    let is_fine = id.len() <= CHARS_MAX
        && id.chars().all(plain)
        && ends_well(id.chars().next())
        && ends_well(id.chars().next_back());
    if is_fine {
        return Ok(());
    }
    let shown: String = id.chars().take(CHARS_MAX).collect();
    let message = format!("`{}` is no id of an environment", shown.escape_debug());
    let advice = "an id has up to 63 small letters, digits and hyphens, such as `fancy-mallard`";
    Err(EnvError::invalid("arguments", message, advice))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_generated_is_an_id() {
        for _ in 0..1000 {
            check(&generate()).unwrap();
        }
    }

    #[test]
    fn what_could_leave_its_place_is_no_id() {
        for id in ["", "..", "a/b", "-a", "a-", "A", "a.lock", "a b", "é", "a\n", &"a".repeat(64)] {
            assert!(check(id).is_err(), "{id:?}");
        }
        for id in ["a", "fancy-mallard", "0199a", &"a".repeat(63)] {
            check(id).unwrap();
        }
    }
}
