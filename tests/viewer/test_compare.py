"""Two sides: texts, options, models; and the difference between them."""

from xml.etree import ElementTree

from playwright.sync_api import expect

from tests.viewer.pages import paste, take

PAGE = "model=bert&text=the+cat+sat&view=compare"


def test_the_difference_is_drawn_of_two_answers_of_one_size(open_page):
    page = open_page(PAGE + "&other={%22text%22:%22%22}")
    second = page.get_by_role("region", name="second")
    drawings = page.locator("[aria-label=second], [aria-label=difference]").locator("canvas")
    expect(second).to_contain_text("Type a text")
    expect(drawings).to_have_count(0)
    svg = ElementTree.fromstring(take(page, "SVG").path().read_text())
    assert len(svg.findall("{*}g")) == 1  # the first side
    box = second.get_by_role("textbox", name="text", exact=True)
    difference = page.get_by_role("region", name="difference")
    box.fill("the cat sat on the mat")
    expect(difference).to_contain_text("No difference to show: the first has 5 x 5")
    box.fill("the dog ran")
    expect(difference.locator("canvas").first).to_be_visible()
    page.route("**/v1/tokenize/**", lambda _: None)  # never answered
    box.fill("the mat")
    expect(drawings).to_have_count(0)
    expect(box).to_be_visible()


def test_tensors_of_the_first_model_are_not_those_of_another(open_page):
    page = open_page("model=scaled_dot_product&view=compare")
    paste(page, query=[[1, 2]], key=[[1, 2], [3, 4]])
    second = page.get_by_role("region", name="second")
    page.get_by_text("another text, model or option").click()
    expect(second.get_by_role("radio", name="file or JSON")).to_be_checked()
    second.get_by_role("combobox", name="second model").select_option("additive")
    expect(second.get_by_role("radio", name="example")).to_be_checked()
    expect(second.locator("canvas").first).to_be_visible()


def test_both_sides_have_one_scale_and_one_layout(open_page, heed):
    page = open_page(PAGE + "&head=0&other={%22head%22:99,%22layer%22:99}")
    expect(page.get_by_role("combobox", name="second head")).to_have_value("3")  # the last one
    largest = heed.attend("bert", text="the cat sat").weights[0, [0, 3]].max()
    legends = page.locator(".sides .legend")
    expect(legends).to_have_count(3)
    for side in (0, 1):
        label = f"colours from 0 to {float(f'{largest:.3g}'):g}, linear scale"
        expect(legends.nth(side)).to_have_attribute("aria-label", label)

    def sizes(*names):
        boxes = (page.locator(".sides .heat-map [role=application]").nth(side).bounding_box() for side in (0, 1))
        return [[box[name] for name in names] for box in boxes]

    first, second = before = sizes("y", "width", "height")
    assert first == second
    page.get_by_text("another text, model or option").click()
    page.get_by_role("region", name="second").get_by_role("textbox", name="text", exact=True).fill("the animal sat")
    difference = page.get_by_role("region", name="difference")
    expect(difference.get_by_role("heading")).to_have_text("“the animal sat”, head 3 minus “the cat sat”, head 0")
    expect(page.get_by_role("region", name="second")).not_to_contain_text("…")
    first, second = sizes("y", "height")
    assert first == second
    assert first[0] == before[0][0]  # the fields of the second text lie over the maps
    page.get_by_role("combobox", name="colour range").select_option("each row")
    expect(legends.nth(0)).to_contain_text("of the row’s largest")
