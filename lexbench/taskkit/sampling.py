"""Random draws of tasks: numbers without repetition, strings that are distinct or equally long in tokens, words.

All iterators are lazy: the values do not depend on how many are taken, only on the generator and on earlier draws.
"""

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from lexbench.core.record import Refused
from lexbench.core.task import Tokenizer, Tokens

TRIES = 1000
"""Give up after so many unusable values in a row."""
USUAL = 64
"""Number of values from which the usual number of tokens is taken."""


def distinct(rng: np.random.Generator, count: int, refusal: str, wide: bool = False) -> Iterator[int]:
    """The numbers 0 to count - 1, each once, in uniform random order (Fisher and Yates); memory grows with the draws.

    Args:
        rng: used for one number at a time.
        count: at most 2^63, with `wide` 2^128.
        refusal: reason of the Refused after the last number.
        wide: draw 256 bits per number and take the remainder; the deviation from uniform is count / 2^256.
    """
    moved: dict[int, int] = {}  # place below `left` -> its number, if not the place itself
    for left in range(count, 0, -1):
        # A UUID has more values than a 64-bit draw.
        place = int.from_bytes(rng.bytes(32), "big") % left if wide else int(rng.integers(left))
        # Fisher and Yates without the list: the last number moves to the drawn place, and only moved ones are kept.
        number, moved[place] = moved.get(place, place), moved.get(left - 1, left - 1)
        yield number
    raise Refused(refusal)


def unused(values: Iterable[str], what: str, remedy: str) -> Iterator[str]:
    """The values without repetitions.

    Raises Refused, "`what` in 1000: `remedy`", after 1000 repetitions in a row.
    """
    seen, misses = set[str](), 0
    for value in values:
        misses = misses + 1 if value in seen else 0
        if misses == 0:
            seen.add(value)
            yield value
        elif misses == TRIES:
            raise Refused(f"{what} in {TRIES}: {remedy}")


def alike(tokenizer: Tokenizer, values: Iterable[str], what: str, remedy: str) -> Iterator[str]:
    """The values with the usual number of tokens, behind a space; the usual number is that of most of the first 64.

    Options of a choice need it: a summed NLL favours options with fewer tokens. Raises Refused, "`what` of N tokens in
    1000: `remedy`", after 1000 other values in a row.
    """

    def tokens(value: str) -> int:
        return len(tokenizer.encode(f" {value}").ids)

    values = iter(values)
    first = list(itertools.islice(values, USUAL))
    usual, misses = Counter(map(tokens, first)).most_common(1)[0][0], 0
    for value in itertools.chain(first, values):
        misses = 0 if tokens(value) == usual else misses + 1
        if misses == 0:
            yield value
        elif misses == TRIES:
            raise Refused(f"{what} of {usual} tokens in {TRIES}: {remedy}")


def letters(rng: np.random.Generator, alphabet: str, size: int) -> Iterator[str]:
    """Words of `size` letters without end; letters are uniform and independent."""
    while True:
        yield "".join(alphabet[letter] for letter in rng.integers(len(alphabet), size=size))


@dataclass(frozen=True)
class Combined:
    """All strings with one part from each list, by number; the first list's part changes fastest."""

    lists: Sequence[Sequence[str]]
    between: str = ""

    @property
    def count(self) -> int:
        """Number of strings. They are distinct if no string splits into parts in two ways."""
        return math.prod(map(len, self.lists))

    def spell(self, number: int) -> str:
        """The string with this number, from 0 to count - 1."""
        parts = []
        for words in self.lists:
            number, place = divmod(number, len(words))
            parts.append(words[place])
        return self.between.join(parts)


CONSONANTS, VOWELS = "bcdfghjklmnprstvwz", "aeiou"
SYLLABLES = tuple(consonant + vowel for consonant in CONSONANTS for vowel in VOWELS)
SPOKEN = Combined((SYLLABLES,) * 3)
"""729,000 pronounceable words of six letters; no word contains another."""

ADJECTIVES, NOUNS = (
    words.split()
    for words in (
        """
able aged agile airy alert amber ample amused ancient apt arid aware azure bald bare basic bitter bland bleak blind
blond blue blunt bold bony brave breezy brief bright brisk broad bronze brown bulky bumpy busy calm candid careful
casual central cheap cheery chilly civil clean clear clever cloudy clumsy coarse cold common copper coral cosy crimson
crisp cubic curious curly cute daily damp daring dark dear deep dense dim direct distant dizzy dry dull dusty eager
early earnest easy elder empty equal exact faint fair famous fancy fast feeble fierce final fine firm fluffy foggy
fond formal frail frank free fresh frosty frozen full funny fuzzy gentle giant glad global golden grand grave great
green grey happy hardy harsh hasty hazy heavy hollow honest huge humble hungry icy idle indigo inner ivory jolly keen
kind large late lazy lean light little lively local lone long loose loud loyal lucky magenta major mellow merry mighty
mild minor misty modern modest muddy mute narrow nasty native neat nervous new nimble noble noisy novel odd olive open
outer pale patient plain polite prime proud pure purple quaint quick quiet rapid rare ready regal remote rich rigid
ripe robust rosy rough round royal rusty sacred sad safe salty sandy scarlet serious shallow sharp shiny short shy
silent silky silver simple sincere sleepy slim slow small smart smooth sober soft solar solid sour spare spicy steady
steep stern stiff still stout strict strong sturdy subtle sunny sweet swift tall tame tender tense thick thin tidy
tiny tired tough tranquil urban useful vague vast vital vivid warm wary weary wet white wide wild windy wise witty
wooden yellow young zesty
""",
        """
acorn actor alley anchor angle ankle apple apron arch arrow artist atlas attic autumn axle badge badger baker balloon
bamboo banjo barn barrel basin basket beach beacon beard beaver bell bench berry bicycle bishop blanket bottle boulder
bowl branch bread brick bridge broom brush bucket buffalo builder button cabin cable cactus camel camera candle canoe
canyon captain carpet carrot castle cattle cave cedar cellar chair chalk chapel cherry chest chimney circle citadel
cliff clock cloud clover coach coast cobra coffee collar comet compass cotton cousin coyote cradle crane crater crayon
creek cricket crown curtain dancer deer desert desk diamond doctor dolphin donkey door dragon drawer driver drum eagle
easel echo elbow elephant engine falcon farmer feather fence fern ferry fiddle field finger fisher flag flame flute
forest fork fossil fountain fox galaxy garden garlic gate gazelle ginger giraffe glacier glass glove goat goose grape
gravel guitar hammer harbor harp hat hawk hedge helmet heron hill honey horn horse hotel island jacket jaguar jar
jewel journal judge jungle kettle keyhole king kitchen kite knight ladder lake lamp lantern lawyer leaf lemon leopard
letter lily lion lizard lobster locket magnet mango maple marble market meadow melon mirror mitten monkey moon moose
mountain mouse museum needle nest nurse oak oasis ocean onion orange orchard otter owl oyster paddle painter palace
panda parrot pasture pebble pelican pencil pepper piano pigeon pillow pilot pine planet plum pocket pond poplar potato
prairie prince puddle pumpkin puppet python quarry queen rabbit raccoon radish raft ranger raven ribbon river robin
rocket rooster rope sailor salmon sandal scarf school sculptor shark sheep shelter shore shovel singer sister sketch
slipper snail spider sponge spoon spruce squirrel stable statue stone stork street sugar summer swallow swan table
tailor teacher temple thistle thumb tiger timber tomato torch tower tractor train tulip tunnel turkey turnip turtle
valley vase village violin wagon walnut walrus water weaver whale wheel whistle willow window winter wizard wolf
wombat yacht zebra
""",
    )
)


def single_tokens(tokenizer: Tokenizer, symbols: str, task: str) -> Tokens:
    """[symbols] the token of each symbol behind a new line; Refused unless each has one token of its own."""
    # Behind a new line, as in the text: many tokenizers give a word a blank or another token at the start of a text.
    behind = len(tokenizer.encode("\n").ids)
    found = [tokenizer.encode(f"\n{symbol}").ids[behind:] for symbol in symbols]
    if {len(ids) for ids in found} != {1} or len({int(ids[0]) for ids in found}) < len(symbols):
        raise Refused(f"{task} needs a token of its own for each of {' '.join(symbols)}: take another tokenizer")
    return np.concatenate(found)
